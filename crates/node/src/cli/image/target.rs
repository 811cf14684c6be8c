//! The volume that an image or a backup goes to.
//!
//! Invariant: a volume that holds a part of one has a name that says so. It gets the name that was asked for when all of it
//! is durable, and not before; so whatever ends an import or a restore, nobody takes a part for the whole.

use super::super::asked::{held_by, show, unexpected, wait_until};
use super::super::values::ShapeArgs;
use crate::admin::Client;
use crate::attached::Attached;
use crate::timing;
use freebs_control::api::{Reply, Request, VolumeState, VolumeStatus};
use freebs_control::rules::{check_name, format_size};
use freebs_driver::{Op, Reply as Answer, STATUS_BYTES_MAX};
use freebs_types::{Error, ErrorKind, Result};
use std::ops::Range;
use std::time::Instant;

/// Bytes of the smallest volume, and the unit of sizes.
const VOLUME_BYTES_MIN: u64 = 1 << 20;
const SECTOR: u64 = 512;

/// Words for what is done with a volume.
#[derive(Clone, Copy, Debug)]
pub struct Doing {
    /// Behind the name of a volume that is not whole.
    pub suffix: &'static str,
    /// `import`, or another word for it.
    pub word: &'static str,
    /// `image`, or another word for what the volume is filled with.
    pub of: &'static str,
    /// The same with its article.
    pub one: &'static str,
}

/// A volume that is to be filled.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    pub name: &'a str,
    /// Its size, if it was said.
    pub size: Option<u64>,
    pub shape: ShapeArgs,
    /// Also if it is not empty, or was left by one that was interrupted.
    pub force: bool,
    pub doing: Doing,
}

/// How the volume came to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// It was made for this import.
    New,
    /// It was there, under its own name.
    There,
    /// An earlier import had left it.
    Left,
}

/// The volume of an import.
pub struct Target<'a> {
    client: &'a Client,
    addresses: &'a [String],
    wanted: Wanted<'a>,
    /// The name that it has now.
    called: String,
    origin: Origin,
    pub volume: VolumeStatus,
    attached: Option<Attached>,
}

/// The name of a volume that is not whole.
pub fn temporary(name: &str, doing: Doing) -> Result<String> {
    let temporary = format!("{name}{}", doing.suffix);
    let longest = freebs_types::limits::VOLUME_NAME_BYTES_MAX - doing.suffix.len();
    check_name("volume", &temporary).map(|()| temporary).map_err(|_| {
        Error::invalid(format!(
            "here a name has at most {longest} characters, because '{}' is put behind it meanwhile; `freebs volume rename` \
             makes it longer",
            doing.suffix
        ))
    })
}

/// The volume of this name, if there is one.
pub async fn find(client: &Client, name: &str) -> Result<Option<VolumeStatus>> {
    match show(client, name).await {
        Ok(volume) => Ok(Some(volume)),
        Err(e) if e.kind == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// The size of a new volume for an image of `image` bytes, if that is known.
fn size_of_new(asked: Option<u64>, image: Option<u64>, of: &str) -> Result<u64> {
    match (asked, image) {
        (None, None) => {
            Err(Error::invalid("the size of standard input can't be known before its end; give it with --size"))
        }
        (Some(size), Some(image)) if size < image => Err(Error::invalid(format!(
            "the {of} is of a disk of {image} bytes and does not fit a volume of {size}; leave out --size, or give more"
        ))),
        (Some(size), _) => Ok(size),
        (None, Some(image)) => {
            let whole = image
                .checked_next_multiple_of(SECTOR)
                .ok_or_else(|| Error::invalid(format!("the {of} is too large")))?;
            Ok(whole.max(VOLUME_BYTES_MIN))
        }
    }
}

/// Refuses an image, or options, that do not fit a volume that is there.
fn fits(volume: &VolumeStatus, args: &Wanted, image: Option<u64>) -> Result<()> {
    let (name, size) = (&volume.name, format_size(volume.size));
    if image.is_some_and(|image| image > volume.size) {
        return Err(Error::invalid(format!(
            "the {} is of a disk of {} bytes and does not fit volume '{name}', which has {}; `freebs volume resize {name} \
             --size …` makes it larger",
            args.doing.of,
            image.unwrap_or_default(),
            volume.size
        )));
    }
    if args.size.is_some_and(|asked| asked != volume.size) {
        return Err(Error::invalid(format!("volume '{name}' is there already, with {size}; leave out --size")));
    }
    let shape = args.shape;
    if shape.copies.is_some()
        || shape.ack.is_some()
        || shape.min_copies.is_some()
        || shape.shards.is_some()
        || shape.stripe.is_some()
    {
        return Err(Error::invalid(format!(
            "volume '{name}' is there already, and keeps the copies, shards and other properties that it has; leave out the \
             options that say something else, or choose another name"
        )));
    }
    Ok(())
}

impl<'a> Target<'a> {
    /// Finds the volume that is there, or makes one. `image`: bytes of the image's disk, if they are known.
    pub async fn find(
        client: &'a Client,
        addresses: &'a [String],
        wanted: Wanted<'a>,
        image: Option<u64>,
    ) -> Result<Self> {
        let Wanted { name, doing, .. } = wanted;
        let temporary = temporary(name, doing)?;
        let found = (find(client, name).await?, find(client, &temporary).await?);
        let (volume, origin) = match found {
            (Some(_), Some(_)) => {
                return Err(Error::invalid(format!(
                    "there are both a volume '{name}' and '{temporary}', which an earlier {} has left or which \
                     another one has under way; delete the latter with `freebs volume delete {temporary}`, or choose another name",
                    doing.word
                )));
            }
            (Some(volume), None) => (volume, Origin::There),
            (None, Some(left)) if wanted.force => (left, Origin::Left),
            (None, Some(left)) => {
                let held = held_by(client, &left.name).await.map(|held| format!(" ({held})")).unwrap_or_default();
                return Err(Error::busy(format!(
                    "'{temporary}' has a part of {}: another {} into '{name}' is under way, or was interrupted{held}. If \
                     it was, --force begins anew in it, or delete it with `freebs volume delete {temporary} --force`",
                    doing.one, doing.word
                )));
            }
            (None, None) => {
                let size = size_of_new(wanted.size, image, doing.of)?;
                (create(client, &wanted, temporary, size).await?, Origin::New)
            }
        };
        if origin != Origin::New {
            fits(&volume, &wanted, image)?;
        }
        let called = volume.name.clone();
        Ok(Self { client, addresses, wanted, called, origin, volume, attached: None })
    }

    /// Attaches the volume, and sees to it that it has its temporary name and reads as zeroes. `Busy` if somebody else has
    /// it, `Invalid` if it is not empty and may not be made so; then nothing was changed.
    pub async fn prepare(&mut self) -> Result<&Attached> {
        let attached = self.attach().await?;
        let attached = self.attached.insert(attached);
        if self.origin == Origin::New {
            return Ok(attached);
        }
        let mut is_empty = true;
        data_of(attached, self.volume.size, async |_, _| {
            is_empty = false;
            Ok(is_empty)
        })
        .await?;
        if !is_empty && !self.wanted.force {
            return Err(Error::invalid(format!(
                "volume '{}' is not empty; --force {}s in place of all that it has, or choose another name",
                self.wanted.name, self.wanted.doing.word
            )));
        }
        if self.origin == Origin::There {
            let temporary = temporary(self.wanted.name, self.wanted.doing)?;
            rename(self.client, &self.called, &temporary).await?;
            self.called = temporary;
        }
        if !is_empty {
            data_of(attached, self.volume.size, async |offset, len| {
                attached.ask(Op::Zero { offset, len, may_trim: true }).await?;
                Ok(true)
            })
            .await?;
        }
        Ok(attached)
    }

    async fn attach(&self) -> Result<Attached> {
        let begun = Instant::now();
        loop {
            let cluster = self.client.welcome().cluster;
            match Attached::open(self.addresses, cluster, self.wanted.doing.word, self.volume.id).await {
                // Whoever left it may have been killed just now.
                Err(e)
                    if e.kind == ErrorKind::Busy
                        && self.origin == Origin::Left
                        && begun.elapsed() < timing::LEFT_MAX =>
                {
                    tokio::time::sleep(timing::LEFT_LOOK).await;
                }
                Err(e) if e.kind == ErrorKind::Busy => return Err(in_use(self.client, &self.called, e).await),
                other => return other,
            }
        }
    }

    /// All of the image was written: the volume gets the name that was asked for, and is given back.
    pub async fn complete(mut self) -> Result<VolumeStatus> {
        let renamed = rename(self.client, &self.called, self.wanted.name).await;
        if let Some(attached) = self.attached.take() {
            attached.close().await;
        }
        renamed.map_err(|e| Error {
            text: format!(
                "all of the {} is in volume '{}', which could not get its name: {e}; `freebs volume rename {} …` gives it \
                 another one",
                self.wanted.doing.of, self.called, self.called
            )
            .into(),
            ..e
        })
    }

    /// The import ended before its end. The error says what is left.
    pub async fn give_up(mut self, e: Error) -> Error {
        // A volume that was made here may be attached by another import, which came first with --force.
        let was_ours = self.attached.is_some();
        if let Some(attached) = self.attached.take() {
            attached.close().await;
        }
        let e = match e.kind {
            ErrorKind::NoSpace => {
                Error { text: format!("{e}: delete what is not needed, or give nodes larger devices").into(), ..e }
            }
            _ => e,
        };
        let (called, name, doing) = (&self.called, self.wanted.name, self.wanted.doing);
        let left = match self.origin {
            Origin::New => {
                let request = Request::VolumeDelete { name: called.clone(), force: was_ours, with_snapshots: false };
                match self.client.call(&request, timing::CALL_MAX).await {
                    Ok(_) => format!("the volume '{name}' was not made"),
                    Err(why) => format!("a part of it is left in volume '{called}', which could not be deleted: {why}"),
                }
            }
            Origin::There if called == name => return e,
            Origin::There | Origin::Left => format!(
                "the volume is called '{called}', because it may have a part of the {} only: {} into '{name}' again with \
                 --force, or delete it",
                doing.of, doing.word
            ),
        };
        Error { text: format!("{e}; {left}").into(), ..e }
    }
}

async fn create(client: &Client, wanted: &Wanted<'_>, temporary: String, size: u64) -> Result<VolumeStatus> {
    let new = wanted.shape.of(temporary, size);
    let Reply::Volume { volume, .. } = client.call(&Request::VolumeCreate(new), timing::CALL_MAX).await? else {
        return Err(unexpected());
    };
    Ok(wait_until(client, volume, |v| v.state == VolumeState::Ready).await)
}

pub async fn rename(client: &Client, name: &str, to: &str) -> Result<VolumeStatus> {
    let request = Request::VolumeRename { name: name.to_owned(), to: to.to_owned() };
    match client.call(&request, timing::CALL_MAX).await? {
        Reply::Volume { volume, .. } => Ok(volume),
        _ => Err(unexpected()),
    }
}

/// The refusal of a volume that somebody else has, with the way out.
pub async fn in_use(client: &Client, name: &str, e: Error) -> Error {
    match held_by(client, name).await {
        Some(held) => Error::busy(format!(
            "{held}; disconnect its clients there, or give it back with `freebs volume detach {name}`, and try again. What \
             has just been killed loses it within seconds"
        )),
        None => e,
    }
}

/// Calls `each` with first byte and length of the parts of a volume that may not be zero, in order, until it says that
/// that is enough (`false`).
pub async fn data_of(attached: &Attached, size: u64, each: impl AsyncFnMut(u64, u64) -> Result<bool>) -> Result<()> {
    data_in(attached, 0..size, each).await
}

/// As [`data_of`], for a range of a volume.
pub async fn data_in(
    attached: &Attached,
    range: Range<u64>,
    mut each: impl AsyncFnMut(u64, u64) -> Result<bool>,
) -> Result<()> {
    let mut at = range.start;
    while at < range.end {
        let len = (range.end - at).min(STATUS_BYTES_MAX);
        let Answer::Status(runs) = attached.ask(Op::Status { offset: at, len }).await? else {
            return Err(Error::bug("a question for what is where had another answer"));
        };
        let before = at;
        for run in runs {
            let has_data = !run.hole && !run.zero;
            if has_data && !each(at, run.bytes).await? {
                return Ok(());
            }
            at += run.bytes;
        }
        if at == before {
            return Err(Error::bug("an answer to what is where covers nothing"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMPORT: Doing = Doing { suffix: ".importing", word: "import", of: "image", one: "an image" };

    #[test]
    fn a_new_volume_is_as_large_as_its_image_or_larger() {
        assert_eq!(size_of_new(None, Some(10 << 20), "image").unwrap(), 10 << 20);
        assert_eq!(size_of_new(None, Some((10 << 20) + 1), "image").unwrap(), (10 << 20) + 512);
        assert_eq!(size_of_new(None, Some(1), "image").unwrap(), 1 << 20);
        assert_eq!(size_of_new(Some(20 << 20), Some(10 << 20), "image").unwrap(), 20 << 20);
        assert_eq!(size_of_new(Some(20 << 20), None, "image").unwrap(), 20 << 20);
        assert!(size_of_new(Some(10 << 20), Some(20 << 20), "image").unwrap_err().text.contains("does not fit"));
        assert!(size_of_new(None, None, "image").unwrap_err().text.contains("--size"));
        assert!(size_of_new(None, Some(u64::MAX), "image").is_err());
    }

    #[test]
    fn a_name_has_room_for_what_is_put_behind_it() {
        assert_eq!(temporary("a", IMPORT).unwrap(), "a.importing");
        assert!(temporary(&"x".repeat(118), IMPORT).is_ok());
        assert!(temporary(&"x".repeat(119), IMPORT).unwrap_err().text.contains("at most 118"));
    }
}
