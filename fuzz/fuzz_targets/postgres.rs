#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| outlast_replica::fuzzing::postgres(bytes));
