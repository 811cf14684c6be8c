//! Pages in Markdown, as far as the checks need them: prose without code, code spans, headings and their anchors.
//!
//! Invariant: prose has the length of its line, with spaces in the place of code.

/// A line of prose; lines of code blocks are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// The first line of the page is 1.
    pub number: usize,
    /// The line as it stands.
    pub text: &'a str,
    /// The line with spaces in the place of code spans.
    pub prose: String,
    /// Insides of code spans.
    pub spans: Vec<&'a str>,
}

/// The lines of a page that are not in a code block.
pub fn lines(page: &str) -> Vec<Line<'_>> {
    let mut found = Vec::new();
    let (mut fence, mut before_is_blank, mut in_list, mut in_code) = (false, true, false, false);
    for (at, text) in page.lines().enumerate() {
        if text.trim_start().starts_with("```") {
            fence = !fence;
            before_is_blank = false;
            continue;
        }
        let blank = text.trim().is_empty();
        // An indented block begins behind an empty line, and not in an item of a list.
        let indented = text.starts_with("    ");
        in_code = (in_code && (blank || indented)) || (before_is_blank && indented && !in_list);
        if !blank && !text.starts_with(' ') {
            in_list =
                text.starts_with("- ") || text.starts_with("* ") || text.starts_with(|c: char| c.is_ascii_digit());
        }
        before_is_blank = blank;
        if !fence && !in_code {
            let (prose, spans) = without_code(text);
            found.push(Line { number: at + 1, text, prose, spans });
        }
    }
    found
}

/// A line with spaces in the place of code spans, and their insides. A backtick without a second one is prose.
pub fn without_code(line: &str) -> (String, Vec<&str>) {
    let (mut prose, mut spans) = (String::new(), Vec::new());
    let mut rest = line;
    while let Some(at) = rest.find('`') {
        prose.push_str(&rest[..at]);
        rest = &rest[at..];
        let ticks = rest.len() - rest.trim_start_matches('`').len();
        let (mark, inner) = rest.split_at(ticks);
        let Some(len) = inner.find(mark) else { break };
        spans.push(inner[..len].trim());
        let whole = len + 2 * ticks;
        prose.extend(std::iter::repeat_n(' ', whole));
        rest = &rest[whole..];
    }
    prose.push_str(rest);
    (prose, spans)
}

/// The anchors of a page: what browsers make of its headings. A heading that is there twice gets a number.
pub fn anchors(page: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    for line in lines(page) {
        let heading = line.text.trim_start_matches('#');
        if heading.len() == line.text.len() || !heading.starts_with(' ') {
            continue;
        }
        let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).flat_map(char::to_lowercase).collect();
        let again = anchors.iter().filter(|a| **a == anchor).count();
        anchors.push(if again == 0 { anchor } else { format!("{anchor}-{again}") });
    }
    anchors
}

/// The lines below the heading `## title`, up to the next one of that depth.
pub fn section<'a>(page: &'a str, title: &str) -> Vec<Line<'a>> {
    let below = lines(page).into_iter().skip_while(|l| l.text.strip_prefix("## ") != Some(title)).skip(1);
    below.take_while(|l| !l.text.starts_with("## ")).collect()
}

/// The cells of a row of a table, trimmed; none if the line is no row, or the line between head and body.
pub fn cells(line: &str) -> Option<Vec<&str>> {
    let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    let cells: Vec<&str> = inner.split('|').map(str::trim).collect();
    (!cells.iter().all(|c| c.starts_with("--"))).then_some(cells)
}
