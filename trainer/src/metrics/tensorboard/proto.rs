//! The few messages of TensorBoard's protocol that scalars need: `Event` (wall_time = 1, step = 2, file_version = 3,
//! summary = 5, session_log = 7), `Summary` (value = 1), `Summary.Value` (tag = 1, simple_value = 2), `SessionLog`
//! (status = 1).

/// Wire types.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH: u64 = 2;
const FIXED32: u64 = 5;
/// `SessionLog.START`: readers drop what other files have of this step and later ones.
const START: u64 = 1;

/// The event that a file begins with.
pub(super) fn version(now_us: u64) -> Vec<u8> {
    let mut event = event(now_us, 0);
    bytes(&mut event, 3, b"brain.Event:2");
    event
}

/// The beginning of a session at `step`.
pub(super) fn start(now_us: u64, step: u64) -> Vec<u8> {
    let mut event = event(now_us, step);
    let mut log = Vec::new();
    key(&mut log, 1, VARINT);
    varint(&mut log, START);
    bytes(&mut event, 7, &log);
    event
}

/// Scalars of a step. Tensorboard keeps them as f32.
pub(super) fn scalars(now_us: u64, step: u64, scalars: &[(String, f64)]) -> Vec<u8> {
    let mut summary = Vec::new();
    for (tag, value) in scalars {
        let mut entry = Vec::new();
        bytes(&mut entry, 1, tag.as_bytes());
        key(&mut entry, 2, FIXED32);
        #[expect(clippy::cast_possible_truncation, reason = "the format has f32")]
        entry.extend((*value as f32).to_le_bytes());
        bytes(&mut summary, 1, &entry);
    }
    let mut event = event(now_us, step);
    bytes(&mut event, 5, &summary);
    event
}

fn event(now_us: u64, step: u64) -> Vec<u8> {
    let mut event = Vec::new();
    key(&mut event, 1, FIXED64);
    event.extend((now_us as f64 / 1e6).to_le_bytes());
    if step > 0 {
        key(&mut event, 2, VARINT);
        varint(&mut event, step);
    }
    event
}

fn key(to: &mut Vec<u8>, field: u64, wire: u64) {
    varint(to, field << 3 | wire);
}

fn bytes(to: &mut Vec<u8>, field: u64, value: &[u8]) {
    key(to, field, LENGTH);
    varint(to, value.len() as u64);
    to.extend(value);
}

fn varint(to: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = (value & 0x7f).to_le_bytes();
        value >>= 7;
        if value == 0 {
            to.push(low);
            return;
        }
        to.push(low | 0x80);
    }
}

#[cfg(test)]
pub(super) mod tests {
    type Field<'a> = (u64, u64, &'a [u8]);

    fn varint(bytes: &[u8]) -> (u64, &[u8]) {
        let length = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
        let value = bytes[..length].iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f));
        (value, &bytes[length..])
    }

    /// Number, value of a varint, bytes of anything else.
    fn fields(mut bytes: &[u8]) -> Vec<Field<'_>> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let (key, rest) = varint(bytes);
            let (value, length, rest) = match key & 7 {
                0 => {
                    let (value, rest) = varint(rest);
                    (value, 0, rest)
                }
                1 => (0, 8, rest),
                5 => (0, 4, rest),
                2 => {
                    let (length, rest) = varint(rest);
                    (0, usize::try_from(length).unwrap(), rest)
                }
                wire => panic!("wire type {wire}"),
            };
            found.push((key >> 3, value, &rest[..length]));
            bytes = &rest[length..];
        }
        found
    }

    pub(in super::super) fn scalars_of(event: &[u8]) -> Vec<(u64, String, f32)> {
        let event = fields(event);
        let step = event.iter().find(|(field, ..)| *field == 2).map_or(0, |(_, step, _)| *step);
        let Some((.., summary)) = event.into_iter().find(|(field, ..)| *field == 5) else {
            return Vec::new();
        };
        let scalar = |(_, _, value): Field<'_>| {
            let value = fields(value);
            let tag = String::from_utf8(value[0].2.to_vec()).unwrap();
            (step, tag, f32::from_le_bytes(value[1].2.try_into().unwrap()))
        };
        fields(summary).into_iter().map(scalar).collect()
    }

    #[test]
    fn large_steps_take_several_bytes_and_read_back() {
        let event = super::scalars(1, 1 << 40, &[("a/b(c)".to_owned(), -0.5)]);
        assert_eq!(scalars_of(&event), [(1 << 40, "a/b(c)".to_owned(), -0.5)]);
    }
}
