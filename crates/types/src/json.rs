//! Identities as JSON: byte ids are lower-case hexadecimal text, so that people can compare them.

use crate::{ClusterId, DeviceId, Hash32, HostPublic};
use core::str::FromStr;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.is_ascii() {
        return None;
    }
    let mut out = [0; N];
    for (b, pair) in out.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let digit = |c: u8| (c as char).to_digit(16);
        *b = (digit(pair[0])? * 16 + digit(pair[1])?) as u8;
    }
    Some(out)
}

macro_rules! json_id {
    ($($name:ident),*) => {$(
        impl FromStr for $name {
            type Err = crate::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                hex(text).map(Self).ok_or_else(|| crate::Error::invalid("an identity is written as hexadecimal digits"))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
                text.parse().map_err(de::Error::custom)
            }
        }
    )*};
}

json_id!(ClusterId, DeviceId, Hash32, HostPublic);
