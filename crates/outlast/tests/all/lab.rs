//! `outlast lab` as a part of the program.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{folder, output};

#[test]
fn a_quiet_lab_prints_nothing_of_its_own() {
    outlast_lab::require!("makes network namespaces");
    let folder = folder();
    let lab =
        ["lab", "--fault", "link down client at 50ms for 50ms", "--", "sh", "-c", "sleep 0.2; echo done"];
    for (flags, events) in [(&["--quiet"][..], 0), (&[], 3)] {
        let ended = output(folder.path(), &[flags, &lab].concat());
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(ended.status.success() && ended.stdout == b"done\n", "{ended:?}");
        let told = ["ready", "link down", "has ended"].into_iter().filter(|event| said.contains(event));
        assert_eq!(told.count(), events, "{said}");
        assert!(events > 0 || said.is_empty(), "{said}");
    }
}
