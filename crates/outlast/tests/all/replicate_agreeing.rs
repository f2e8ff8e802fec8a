//! Answers that clients get when other servers have given them as well.

use crate::common::eventually;
use crate::replicate::{ANSWERS, Counters, Machines, are_equal, has_all, take};
use crate::replicate_histories::judged;
use crate::replicate_join::{Client, switch_to};

/// Clients get answers when so many servers have given them.
pub fn answering(machines: &Machines, answers: &str) {
    let list = std::fs::read_to_string(&machines.file).unwrap();
    std::fs::write(&machines.file, list.replace(ANSWERS, &format!("answers = \"{answers}\""))).unwrap();
}

#[test]
fn clients_do_not_hear_a_primary_that_answers_otherwise_than_two_others() {
    for answers in ["majority", "all"] {
        let Some(machines) = Machines::new(&format!("agreeing-{answers}"), 3, 0) else { return };
        answering(&machines, answers);
        let mut nodes = machines.start_all(&[]);
        let first = machines.primary(&["a", "b", "c"]);
        let counters = Counters::start(&machines, 2);
        let mut client = Client::new(&machines);
        assert_eq!(client.ask("set name right\r\n", 1), "+OK");
        assert_eq!(machines.redis(&first, "set name wrong"), "+OK");
        // With two at a time there is more than one that waits.
        assert_eq!(client.ask("get name\r\nget name\r\n", 4), "$5 right $5 right");
        eventually("it is not out", || machines.role(&first).starts_with("out of the group").then_some(()));
        counters.go_on();
        let mut left: Vec<&str> = ["a", "b", "c"].into_iter().filter(|name| *name != first).collect();
        // Two are left: each waits for the other one, until it is alone.
        let primary = machines.primary(&left);
        let next = left.iter().copied().find(|name| *name != primary).unwrap();
        switch_to(&machines, next);
        counters.go_on();
        assert_eq!(client.ask("get name\r\n", 2), "$5 right");
        drop(take(&mut nodes, next));
        left.retain(|name| *name != next);
        counters.go_on();
        let counts = counters.end();
        has_all(&machines, left[0], &counts);
        are_equal(&machines, &left);
    }
}

#[test]
fn clients_that_wait_for_all_servers_hear_what_one_would_have_said() {
    let Some(machines) = Machines::new("agreeing-histories", 3, 1) else { return };
    answering(&machines, "all");
    judged(&machines);
}
