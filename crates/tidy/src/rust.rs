//! A scanner of Rust: enough to tell code, comments and literals apart, and to find where functions begin and end.
//!
//! Invariants: every byte that is not white space belongs to exactly one token, and no input makes the scanner panic; a
//! literal or comment that does not end goes to the end of the text.

/// The kinds of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// An identifier or a keyword.
    Word,
    /// A number with its suffix; a point is not part of it.
    Number,
    /// String literals of every kind, with their quotes.
    Text,
    /// A character or a byte, with its quotes.
    Char,
    /// A lifetime or a label, with its quote.
    Lifetime,
    /// A line comment, or a block comment with what is nested in it.
    Comment,
    /// One character of punctuation.
    Mark,
}

/// A piece of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    /// Its kind.
    pub kind: TokenKind,
    /// The piece as it stands.
    pub text: &'a str,
    /// The line on which it begins; the first one is 1.
    pub line: usize,
}

impl Token<'_> {
    fn is(&self, kind: TokenKind, text: &str) -> bool {
        self.kind == kind && self.text == text
    }

    /// True for this character of punctuation.
    pub fn is_mark(&self, text: &str) -> bool {
        self.is(TokenKind::Mark, text)
    }

    /// True for this word.
    pub fn is_word(&self, text: &str) -> bool {
        self.is(TokenKind::Word, text)
    }
}

/// The tokens of a source, in order.
pub fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let (mut at, mut line) = (0, 1);
    while let Some(first) = source[at..].chars().next() {
        if first.is_whitespace() {
            line += usize::from(first == '\n');
            at += first.len_utf8();
            continue;
        }
        let (kind, len) = token(&source[at..], first);
        let text = &source[at..at + len];
        tokens.push(Token { kind, text, line });
        line += text.matches('\n').count();
        at += len;
    }
    tokens
}

/// Kind and length in bytes of the token at the beginning of `rest`, whose first character is `first`.
fn token(rest: &str, first: char) -> (TokenKind, usize) {
    if rest.starts_with("//") {
        return (TokenKind::Comment, rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return (TokenKind::Comment, block_comment(rest));
    }
    if let Some(len) = literal_with_prefix(rest) {
        return len;
    }
    match first {
        '"' => (TokenKind::Text, quoted(rest, '"')),
        '\'' => quote(rest),
        c if c.is_ascii_digit() => (TokenKind::Number, word(rest)),
        c if c == '_' || c.is_alphabetic() => (TokenKind::Word, word(rest)),
        c => (TokenKind::Mark, c.len_utf8()),
    }
}

fn word(rest: &str) -> usize {
    rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len())
}

fn block_comment(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let (mut depth, mut at) = (0_usize, 0);
    while at + 1 < bytes.len() {
        match (bytes[at], bytes[at + 1]) {
            (b'/', b'*') => depth += 1,
            (b'*', b'/') => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

/// Literals that begin with a letter: `r"…"`, `r#"…"#`, `b"…"`, `br"…"`, `c"…"`, `cr"…"`, `b'…'`, and `r#name`.
fn literal_with_prefix(rest: &str) -> Option<(TokenKind, usize)> {
    let prefix = ["br", "cr", "b", "c", "r"].into_iter().find(|p| rest.starts_with(p))?;
    let behind = &rest[prefix.len()..];
    if prefix == "b" && behind.starts_with('\'') {
        return Some((TokenKind::Char, prefix.len() + quoted(behind, '\'')));
    }
    if !prefix.ends_with('r') {
        return behind.starts_with('"').then(|| (TokenKind::Text, prefix.len() + quoted(behind, '"')));
    }
    let hashes = behind.len() - behind.trim_start_matches('#').len();
    let inner = &behind[hashes..];
    if !inner.starts_with('"') {
        let named = prefix == "r" && hashes == 1 && inner.starts_with(|c: char| c == '_' || c.is_alphabetic());
        return named.then(|| (TokenKind::Word, prefix.len() + hashes + word(inner)));
    }
    let end = format!("\"{}", "#".repeat(hashes));
    let len = inner[1..].find(&end).map_or(inner.len(), |n| 1 + n + end.len());
    Some((TokenKind::Text, prefix.len() + hashes + len))
}

/// The length of a literal between two `quote`s, in which a backslash takes the next character along.
fn quoted(rest: &str, quote: char) -> usize {
    let mut chars = rest.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        if c == '\\' {
            chars.next();
        } else if c == quote {
            return at + c.len_utf8();
        }
    }
    rest.len()
}

/// A character literal or a lifetime; both begin with a single quote.
fn quote(rest: &str) -> (TokenKind, usize) {
    let mut chars = rest[1..].chars();
    match (chars.next(), chars.next()) {
        (Some('\\'), _) => (TokenKind::Char, quoted(rest, '\'')),
        (Some(c), Some('\'')) => (TokenKind::Char, 2 + c.len_utf8()),
        (Some(c), _) if c == '_' || c.is_alphabetic() => (TokenKind::Lifetime, 1 + word(&rest[1..])),
        _ => (TokenKind::Mark, 1),
    }
}

/// A function with a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name, as it is called.
    pub name: String,
    /// The line of `fn`.
    pub line: usize,
    /// Lines from that of `fn` to that of its closing brace.
    pub lines: usize,
}

/// The functions of a source that have a body, inner ones too, in the order of their beginnings.
pub fn functions(source: &str) -> Vec<Function> {
    let tokens: Vec<Token<'_>> = tokens(source).into_iter().filter(|t| t.kind != TokenKind::Comment).collect();
    let mut found = Vec::new();
    for at in 0..tokens.len() {
        if !tokens[at].is_word("fn") {
            continue;
        }
        // In a macro a function may have the name `$name`. Without a name it is a type.
        let name_at = at + 1 + usize::from(tokens.get(at + 1).is_some_and(|t| t.is_mark("$")));
        let Some(name) = tokens.get(name_at).filter(|t| t.kind == TokenKind::Word) else { continue };
        let Some(open) = body(&tokens, name_at + 1) else { continue };
        let line = tokens[at].line;
        let end = tokens[close(&tokens, open)].line;
        found.push(Function { name: name.text.to_owned(), line, lines: end - line + 1 });
    }
    found
}

/// The brace that opens the body of the function whose signature goes on at `at`; none if it ends with a semicolon.
fn body(tokens: &[Token<'_>], at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    let mut at = at;
    while let Some(token) = tokens.get(at) {
        match token.text {
            "(" | "[" if token.kind == TokenKind::Mark => depth += 1,
            ")" | "]" if token.kind == TokenKind::Mark => depth = depth.saturating_sub(1),
            ";" if depth == 0 => return None,
            // A constant as a generic argument, as in `Buffer<{ SIZE * 2 }>`.
            "{" if depth == 0
                && (tokens[at - 1].is_mark("<") || tokens[at - 1].is_mark(","))
                && in_angles(tokens, at) =>
            {
                at = close(tokens, at);
            }
            "{" if depth == 0 => return Some(at),
            "{" => at = close(tokens, at),
            _ => {}
        }
        at += 1;
    }
    None
}

/// True if the pair of the brace at `at` is followed by more of a list of generic arguments.
fn in_angles(tokens: &[Token<'_>], at: usize) -> bool {
    tokens.get(close(tokens, at) + 1).is_some_and(|t| t.is_mark(">") || t.is_mark(","))
}

/// The brace that closes the one at `open`, or the last token.
fn close(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        if token.is_mark("{") {
            depth += 1;
        } else if token.is_mark("}") {
            depth -= 1;
            if depth == 0 {
                return at;
            }
        }
    }
    tokens.len() - 1
}
