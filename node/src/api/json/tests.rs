//! Tests of the checks on JSON.

use std::collections::HashSet;

use jiter::{JiterErrorType, JsonErrorType};
use proptest::prelude::*;

use super::{Checker, JsonError, RootKeys};

const DEPTH_MAX: usize = 128;

fn check(payload: impl AsRef<[u8]>) -> Result<(), JsonError> {
    check_with_attributes(payload, &[])
}

fn check_with_attributes(payload: impl AsRef<[u8]>, attributes: &[&str]) -> Result<(), JsonError> {
    let attributes = attributes.iter().copied().collect::<HashSet<_>>();
    Checker::new(DEPTH_MAX).object(payload.as_ref(), RootKeys::Queried { attributes: &attributes })
}

#[track_caller]
fn accepted(payload: impl AsRef<[u8]>) {
    let payload = payload.as_ref();
    assert_eq!(check(payload), Ok(()), "{}", String::from_utf8_lossy(payload));
}

#[track_caller]
fn malformed(payload: impl AsRef<[u8]>, reason: JsonErrorType, offset: usize) {
    let payload = payload.as_ref();
    let expected = JsonError::Syntax { reason: JiterErrorType::JsonError(reason), offset };
    assert_eq!(check(payload), Err(expected), "{}", String::from_utf8_lossy(payload));
}

fn nested(levels: usize) -> String {
    format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels))
}

#[test]
fn objects_of_every_kind_of_value_are_accepted() {
    for payload in [
        "{}",
        " \t\r\n{ } \n",
        r#"{"a":1,"b":-0.5e+3,"c":"x","d":true,"e":false,"f":null,"g":[],"h":{},"i":[1,[2,{"j":[]}]]}"#,
        r#"{"":"","\u0000":"\u0000","é":"日本","\"\\\/\b\f\n\r\t":"\uD83D\uDE00"}"#,
        r#"{"a":1,"a":2}"#,
    ] {
        accepted(payload);
    }
}

#[test]
fn anything_but_an_object_is_refused() {
    for payload in ["", " ", "[]", "[{}]", "1", "\"a\"", "null", "true", "x", "}", "\u{feff}{}", "\0{}"] {
        assert_eq!(check(payload), Err(JsonError::NotAnObject), "{payload:?}");
    }
}

#[test]
fn what_is_not_json_is_refused_with_its_place() {
    malformed("{", JsonErrorType::EofWhileParsingObject, 1);
    malformed(r#"{"a":1"#, JsonErrorType::EofWhileParsingObject, 6);
    malformed(r#"{"a":1,}"#, JsonErrorType::TrailingComma, 7);
    malformed(r#"{"a":[1,]}"#, JsonErrorType::TrailingComma, 8);
    malformed(r#"{"a" 1}"#, JsonErrorType::ExpectedColon, 5);
    malformed(r#"{a:1}"#, JsonErrorType::KeyMustBeAString, 1);
    malformed(r#"{"a":[1}"#, JsonErrorType::ExpectedListCommaOrEnd, 7);
    malformed(r#"{"a":nul}"#, JsonErrorType::ExpectedSomeIdent, 8);
    malformed(r#"{"a":'b'}"#, JsonErrorType::ExpectedSomeValue, 5);
    malformed("{\"a\":\"\n\"}", JsonErrorType::ControlCharacterWhileParsingString, 6);
    malformed(r#"{"a":"\x"}"#, JsonErrorType::InvalidEscape, 7);
}

#[test]
fn something_behind_the_object_is_refused() {
    malformed("{}x", JsonErrorType::TrailingCharacters, 2);
    malformed("{} {}", JsonErrorType::TrailingCharacters, 3);
    malformed("{}\0", JsonErrorType::TrailingCharacters, 2);
    malformed("{}}", JsonErrorType::TrailingCharacters, 2);
}

#[test]
fn bytes_that_are_not_utf_8_are_refused_in_keys_and_values() {
    for payload in [
        &b"{\"a\":\"\xff\"}"[..],
        b"{\"\xff\":1}",
        b"{\"a\":{\"\xc3\":1}}",
        b"{\"a\":\"\\n\xff\"}",
        // A surrogate in UTF-8, an overlong slash, a code point that is too large.
        b"{\"a\":\"\xed\xa0\x80\"}",
        b"{\"a\":\"\xc0\xaf\"}",
        b"{\"a\":\"\xf4\x90\x80\x80\"}",
    ] {
        assert!(matches!(check(payload), Err(JsonError::Syntax { .. })), "{payload:?}");
    }
    assert!(matches!(check(b"{\xff}"), Err(JsonError::Syntax { .. })));
}

#[test]
fn surrogates_come_in_pairs() {
    accepted(r#"{"a":"\ud83d\ude00"}"#);
    accepted(r#"{"\ud83d\ude00":1}"#);
    for lone in
        [r"\ud83d", r"\ude00", r"\ud83dx", r"\ud83d\n", r"\ud83d\u0041", r"\ud83d\ud83d", r"\ude00\ud83d"]
    {
        let in_key = format!(r#"{{"{lone}":1}}"#);
        let in_value = format!(r#"{{"a":"{lone}"}}"#);
        let inside = format!(r#"{{"a":[{{"b":{{"{lone}":1}}}}]}}"#);
        for payload in [in_key, in_value, inside] {
            assert!(matches!(check(&payload), Err(JsonError::LoneSurrogate { .. })), "{payload}");
        }
    }
}

#[test]
fn nesting_is_allowed_to_the_limit_and_no_further() {
    accepted(nested(DEPTH_MAX));
    let offset = "{\"a\":".len() * DEPTH_MAX;
    assert_eq!(check(nested(DEPTH_MAX + 1)), Err(JsonError::TooDeep { depth_max: DEPTH_MAX, offset }));

    let arrays = |levels: usize| format!("{{\"a\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
    accepted(arrays(DEPTH_MAX - 1));
    assert!(matches!(check(arrays(DEPTH_MAX)), Err(JsonError::TooDeep { .. })));
}

#[test]
fn depth_counts_what_is_open_and_not_what_was() {
    let siblings = format!("{{\"a\":[{}]}}", vec!["[[],{\"b\":{}}]"; 1_000].join(","));
    let shallow = Checker::new(5).object(siblings.as_bytes(), RootKeys::Any);
    assert_eq!(shallow, Ok(()));
    let too_shallow = Checker::new(4).object(siblings.as_bytes(), RootKeys::Any);
    assert!(matches!(too_shallow, Err(JsonError::TooDeep { depth_max: 4, .. })));
}

#[test]
fn hostile_nesting_does_not_reach_the_stack() {
    let bombs = ["{\"a\":".repeat(1 << 18), format!("{{\"a\":{}", "[".repeat(1 << 20))];
    for bomb in bombs {
        assert!(matches!(check(&bomb), Err(JsonError::TooDeep { .. })));
        // Even without a useful limit there is only the list of levels, on the heap.
        let unlimited = Checker::new(usize::MAX).object(bomb.as_bytes(), RootKeys::Any);
        assert!(matches!(unlimited, Err(JsonError::Syntax { .. })));
    }
}

#[test]
fn exponents_of_64_bits_are_accepted_and_larger_ones_refused() {
    for number in [
        "1e1000000000",
        "-1.5E-1000000000",
        "1e9223372036854775807",
        "1e+9223372036854775807",
        "1e-9223372036854775808",
        "0e0",
        "1e00000000000000000000000000000000000005",
        "123456789012345678901234567890.5e400",
    ] {
        accepted(format!(r#"{{"a":{number}}}"#));
    }
    for number in [
        "1e9223372036854775808",
        "1e+9223372036854775808",
        "1e-9223372036854775809",
        "0e99999999999999999999",
        "-1.25E123456789012345678901234567890",
    ] {
        let payload = format!(r#"{{"a":[{number}]}}"#);
        assert_eq!(check(&payload), Err(JsonError::ExponentOutOfRange { offset: 6 }), "{payload}");
    }
}

#[test]
fn what_is_no_number_in_json_is_refused() {
    for number in [
        "01",
        "-",
        "+1",
        ".5",
        "1.",
        "1.e1",
        "1e",
        "1e+",
        "1E-",
        "--1",
        "1e1.5",
        "0x10",
        "NaN",
        "Infinity",
        "-Infinity",
        "-NaN",
        "1_000",
        "00",
        "-01",
    ] {
        let payload = format!(r#"{{"a":{number}}}"#);
        assert!(matches!(check(&payload), Err(JsonError::Syntax { .. })), "{payload}");
    }
}

#[test]
fn numbers_of_any_length_are_accepted_and_what_follows_them_is_still_checked() {
    let digits = "9".repeat(100_000);
    for number in [
        digits.clone(),
        format!("-{digits}"),
        format!("{digits}.5"),
        format!("-{digits}.{digits}E-7"),
        format!("{digits}e+9223372036854775807"),
        format!("0.{digits}"),
    ] {
        accepted(format!(r#"{{"a":{number}}}"#));
        accepted(format!(r#"{{"a":[{number},{{"b":{number} }}],"c":"\u0041"}}"#));
        let payload = format!(r#"{{"a":{number},"__c":1}}"#);
        assert_eq!(check(payload), Err(JsonError::ReservedKey { key: "__c".to_owned() }));
        let payload = format!(r#"{{"a":{number}}}x"#);
        malformed(&payload, JsonErrorType::TrailingCharacters, payload.len() - 1);
    }
}

#[test]
fn long_numbers_follow_the_grammar_of_short_ones() {
    let digits = "9".repeat(5_000);
    for (tail, at) in [(".", 1), (".x", 1), ("e", 1), ("e+", 2), ("e-x", 2), (".5e", 3)] {
        let payload = format!(r#"{{"a":{digits}{tail}}}"#);
        malformed(&payload, JsonErrorType::InvalidNumber, 5 + digits.len() + at);
    }
    let payload = format!(r#"{{"a":{digits}e9223372036854775808}}"#);
    assert_eq!(check(payload), Err(JsonError::ExponentOutOfRange { offset: 5 }));
    let payload = format!(r#"{{"a":{digits}-1}}"#);
    assert!(matches!(check(payload), Err(JsonError::Syntax { .. })));
}

#[test]
fn reserved_root_keys_are_refused_however_they_are_written() {
    for (written, key) in [
        ("__x", "__x"),
        ("__", "__"),
        (r"\u005f_x", "__x"),
        (r"_\u005Fx", "__x"),
        (r"\u005f\u005f\u0065ventId", "__eventId"),
    ] {
        let expected = Err(JsonError::ReservedKey { key: key.to_owned() });
        assert_eq!(check(format!(r#"{{"{written}":1}}"#)), expected);
        assert_eq!(check(format!(r#"{{"a":{{}},"b":[1],"{written}":1}}"#)), expected);
    }
}

#[test]
fn keys_that_only_resemble_reserved_ones_are_accepted() {
    accepted(r#"{"_x":1,"_":2,"x__":3,"\\u005f_x":4,"":5}"#);
    accepted(r#"{"a":{"__x":1,"b":[{"\u005f_y":2}]},"c":[{"__z":3}],"d":"__x"}"#);
}

#[test]
fn reserved_root_keys_are_allowed_where_nothing_queries() {
    assert_eq!(Checker::new(DEPTH_MAX).object(br#"{"__x":1}"#, RootKeys::Any), Ok(()));
}

#[test]
fn root_keys_must_not_be_names_of_attributes() {
    for payload in [r#"{"seat":1}"#, r#"{"a":1,"seat":1}"#, r#"{"s\u0065at":null}"#] {
        let expected = Err(JsonError::KeyOfAttribute { key: "seat".to_owned() });
        assert_eq!(check_with_attributes(payload, &["row", "seat"]), expected);
    }
    for payload in [r#"{"Seat":1,"sea":2,"seats":3}"#, r#"{"a":{"seat":1},"b":[{"row":2}],"c":"seat"}"#] {
        assert_eq!(check_with_attributes(payload, &["row", "seat"]), Ok(()));
    }
}

#[test]
fn a_checker_carries_nothing_from_one_payload_to_the_next() {
    let mut checker = Checker::new(2);
    for _ in 0..3 {
        assert!(checker.object(br#"{"a":["\n"#, RootKeys::Any).is_err());
        assert_eq!(checker.object(br#"{"a":{"b":"\n"}}"#, RootKeys::Any), Ok(()));
        assert!(checker.object(br#"{"a":{"b":{}}}"#, RootKeys::Any).is_err());
    }
}

/// Values whose every level serde_json accepts too.
fn value() -> impl Strategy<Value = serde_json::Value> {
    let scalar = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(serde_json::Value::from),
        any::<i64>().prop_map(serde_json::Value::from),
        any::<u64>().prop_map(serde_json::Value::from),
        any::<f64>().prop_map(serde_json::Value::from),
        any::<String>().prop_map(serde_json::Value::from),
    ];
    scalar.prop_recursive(6, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(serde_json::Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..8)
                .prop_map(|fields| fields.into_iter().collect()),
        ]
    })
}

fn object() -> impl Strategy<Value = serde_json::Value> {
    prop::collection::btree_map(any::<String>(), value(), 0..8)
        .prop_map(|fields| fields.into_iter().collect())
}

fn escape_everything(text: &str) -> String {
    text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect()
}

/// Pieces of JSON and things that look like them.
fn token() -> impl Strategy<Value = Vec<u8>> {
    let known = [
        "{", "}", "[", "]", ":", ",", "\"", "\"a\"", "\"a\":1", "\"a\":", "1", "-", "0", ".", "5", "e", "E+",
        "1e999", "true", "false", "null", "tru", "\\", "\\u", "\\ud83d", "\\ude00", "005f", "\\n", " ", "\n",
        "é", "\0",
    ];
    prop_oneof![
        20 => prop::sample::select(known.to_vec()).prop_map(|token| token.as_bytes().to_vec()),
        1 => any::<u8>().prop_map(|byte| vec![byte]),
    ]
}

fn agrees_with_another_parser(payload: &[u8]) -> Result<(), TestCaseError> {
    let verdict = Checker::new(DEPTH_MAX).object(payload, RootKeys::Any);
    match (verdict, serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(payload)) {
        (Ok(()), Ok(_)) | (Err(_), Err(_)) => {}
        // Numbers beyond f64 are fine here and not there.
        (Ok(()), Err(error)) => {
            prop_assert!(error.to_string().starts_with("number out of range"), "{}", error)
        }
        (Err(error), Ok(_)) => {
            prop_assert!(matches!(error, JsonError::ExponentOutOfRange { .. }), "{}", error)
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn every_serialised_object_is_accepted(object in object()) {
        for text in [object.to_string(), format!("{object:#}")] {
            prop_assert_eq!(Checker::new(DEPTH_MAX).object(text.as_bytes(), RootKeys::Any), Ok(()));
        }
    }

    #[test]
    fn edited_objects_are_judged_as_another_parser_does(
        object in object(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 1..3),
    ) {
        let mut payload = object.to_string().into_bytes();
        for (at, byte, kind) in edits {
            let at = at.index(payload.len());
            match kind {
                0 => payload[at] = byte,
                1 => payload.insert(at, byte),
                // Two bytes at least and two edits at most: there is always one to take.
                _ => drop(payload.remove(at)),
            }
        }
        agrees_with_another_parser(&payload)?;
    }

    #[test]
    fn random_tokens_are_judged_as_another_parser_does(tokens in prop::collection::vec(token(), 0..24)) {
        let soup = tokens.concat();
        agrees_with_another_parser(&soup)?;
        agrees_with_another_parser(&[b"{\"a\":", soup.as_slice(), b"}"].concat())?;
    }

    #[test]
    fn escapes_hide_no_reserved_key(tail in any::<String>()) {
        let key = format!("__{tail}");
        let payload = format!(r#"{{"{}":1}}"#, escape_everything(&key));
        prop_assert_eq!(check(payload), Err(JsonError::ReservedKey { key }));
    }

    #[test]
    fn the_bound_of_exponents_is_that_of_i64(exponent in any::<i128>()) {
        for exponent in [exponent, exponent >> 63, exponent >> 64, exponent >> 65] {
            let result = check(format!(r#"{{"a":1e{exponent}}}"#));
            let fits = i64::try_from(exponent).is_ok();
            prop_assert_eq!(result, if fits { Ok(()) } else { Err(JsonError::ExponentOutOfRange { offset: 5 }) });
        }
    }
}
