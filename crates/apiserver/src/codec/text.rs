//! JSON text as kube-apiserver writes it: characters that mean something in HTML are escaped.

/// Writes a string.
pub(super) fn put_string(text: &str, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    let bytes = text.as_bytes();
    let mut start = 0;
    for (index, byte) in bytes.iter().enumerate() {
        // U+2028 and U+2029 are E2 80 A8 and E2 80 A9.
        let is_separator =
            *byte == 0xe2 && matches!(bytes.get(index + 1..index + 3), Some([0x80, 0xa8 | 0xa9]));
        if !matches!(byte, 0..0x20 | b'"' | b'\\' | b'<' | b'>' | b'&') && !is_separator {
            continue;
        }
        if index < start {
            continue;
        }
        out.extend_from_slice(&bytes[start..index]);
        start = index + 1;
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0c => out.extend_from_slice(b"\\f"),
            0xe2 => {
                out.extend_from_slice(if bytes[index + 2] == 0xa8 { b"\\u2028" } else { b"\\u2029" });
                start = index + 3;
            }
            byte => {
                out.extend_from_slice(b"\\u00");
                out.push(HEX[usize::from(byte >> 4)]);
                out.push(HEX[usize::from(byte & 15)]);
            }
        }
    }
    out.extend_from_slice(&bytes[start..]);
    out.push(b'"');
}

/// Writes a name and a colon, after a comma unless it is the first one.
pub(super) fn put_name(name: &str, first: &mut bool, out: &mut Vec<u8>) {
    if !std::mem::replace(first, false) {
        out.push(b',');
    }
    out.push(b'"');
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
}
