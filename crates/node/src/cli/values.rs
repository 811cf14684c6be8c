//! Values of the command line that several commands have: sizes, names, the properties of a volume.

use crate::options::resolve;
use clap::{Args, ValueEnum};
use freebs_control::{Ack, CreateVolume, rules};
use std::net::SocketAddr;

/// Where `freebs up` keeps its data unless told otherwise.
pub const DEFAULT_DATA: &str = "./freebs-data";

/// The properties of a new volume beside its name and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Args)]
pub struct ShapeArgs {
    /// Copies on different nodes [default: 3, or as many as there are nodes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=7))]
    pub copies: Option<u8>,

    /// Answer a write when it is durable on this many copies [default: majority]
    #[arg(long, value_enum)]
    pub ack: Option<AckArg>,

    /// Pause writes with fewer copies than this [default: 2, or 1 for one copy]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=7))]
    pub min_copies: Option<u8>,

    /// Logs that the volume is striped over [default: 1 below 64G, then one for each 64G, up to 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub shards: Option<u32>,

    /// Keep so much of its past, so that it can be read as of any moment [default: none]
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub retain: Option<u64>,

    /// Size of a stripe, a power of two from 64K to 1G [default: 1M]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub stripe: Option<u64>,
}

impl ShapeArgs {
    /// The order for a volume of this name and size, in bytes.
    #[must_use]
    pub fn of(self, name: String, size: u64) -> CreateVolume {
        let Self { copies, ack, min_copies, shards, retain, stripe } = self;
        let ack = ack.unwrap_or(AckArg::Majority).into();
        CreateVolume { name, size, copies, ack, min_copies, shards, stripe, retain_ms: retain }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AckArg {
    Majority,
    All,
}

impl From<AckArg> for Ack {
    fn from(a: AckArg) -> Self {
        match a {
            AckArg::Majority => Self::Majority,
            AckArg::All => Self::All,
        }
    }
}

pub fn size(text: &str) -> Result<u64, String> {
    rules::parse_size(text).map_err(|e| e.to_string())
}

/// A length of time, such as `24h`, in milliseconds.
pub fn span(text: &str) -> Result<u64, String> {
    let time =
        humantime::parse_duration(text).map_err(|_| format!("'{text}' is no time; write 30min, 24h or 7days"))?;
    u64::try_from(time.as_millis()).map_err(|_| format!("'{text}' is too long"))
}

/// The same, or `off` for none.
pub fn span_or_off(text: &str) -> Result<u64, String> {
    if text == "off" { Ok(0) } else { span(text) }
}

pub fn volume_size(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    rules::check_size(bytes).map(|()| bytes).map_err(|e| e.to_string())
}

pub fn volume_name(text: &str) -> Result<String, String> {
    rules::check_name("volume", text).map(|()| text.to_owned()).map_err(|e| e.to_string())
}

pub fn address(text: &str) -> Result<SocketAddr, String> {
    resolve(text).map_err(|e| e.to_string())
}

pub fn workers(text: &str) -> Result<u16, String> {
    let n = text.parse::<u16>().map_err(|_| format!("'{text}' is no number; choose 1, 2, 4 or 8"))?;
    rules::check_workers(n).map(|()| n).map_err(|e| e.to_string())
}
