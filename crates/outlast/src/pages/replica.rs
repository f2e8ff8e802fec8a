//! `outlast replicate`: a node of a group.

use super::program::when;
use super::{gauge, plain_table};
use crate::exit::clean;
use crate::narrate::{grouped, seconds};
use comfy_table::CellAlignment;
use outlast_admin::Status;
use outlast_admin::replica::{Earlier, Explained, Joining, Node, Replica};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use std::time::Duration;

/// The node, its group, and the others. `socket` is a line for where this instance is asked.
pub(super) fn text(status: &Status, page: &Replica, socket: &str) -> String {
    let up = seconds(Duration::from_millis(status.up_ms));
    let (group, node, portal) = (clean(&page.group), clean(&page.node), clean(&page.portal));
    let role = role(page);
    let mut text = format!(
        "process {}, up {up}, node {node} of the group {group}, portal {portal}: {role}\n{socket}",
        status.pid
    );
    if let Some(waits) = &page.waits {
        let earlier =
            waits.were_members.iter().map(|Earlier { node, epoch }| format!("{node} (view {epoch})"));
        let all = [
            ("not there", waits.absent.clone()),
            ("server not ready", waits.not_ready.clone()),
            ("ran before", earlier.collect()),
            ("in a group that does not let this node in yet", waits.in_group.clone()),
        ];
        for (what, nodes) in all.into_iter().filter(|(_, nodes)| !nodes.is_empty()) {
            text.push_str(&format!("  {what}: {}\n", clean(&nodes.join(", "))));
        }
        for other in &waits.disagree {
            text.push_str(&format!(
                "  {} has another group file: {}\n",
                clean(&other.node),
                clean(&other.what)
            ));
        }
    }
    if page.epoch > 0 && page.leader.is_none() {
        text.push_str(
            "  hears nobody that leads the vote: more than half of the nodes have to answer each other; if too many are off for good, see \
             `outlast replicate recover`\n",
        );
    }
    if page.other_history {
        text.push_str(
            "  its server has data that the group does not have, and keeps them: `outlast replicate join` replaces them (--join does not)\n",
        );
    }
    match &page.joining {
        Some(Joining { failed: Some(why), .. }) => text.push_str(&format!("  cannot join: {}\n", clean(why))),
        Some(Joining { from: Some(from), copied_bytes, .. }) => {
            text.push_str(&format!("  gets the data of {}: {} bytes\n", clean(from), grouped(*copied_bytes)));
        }
        Some(Joining { catching_up: true, .. }) => {
            text.push_str("  has a copy of the data, and catches up\n")
        }
        _ => {}
    }
    if page.epoch > 0 && !page.server.is_empty() {
        text.push_str(&format!(
            "  view {}, {} connections, log index {}, {} delivered to {}\n",
            page.epoch,
            grouped(page.connections),
            grouped(page.last_index),
            grouped(page.delivered_index),
            clean(&page.server)
        ));
        text.push_str(&format!("  answers compared to log index {}", grouped(page.compared_index)));
        if page.not_compared > 0 {
            text.push_str(&format!(", {} not comparable", grouped(page.not_compared)));
        }
        if page.differences > 0 {
            text.push_str(&format!(
                ", differences found: {} (outlast replicate why)",
                grouped(page.differences)
            ));
        }
        text.push('\n');
    }
    if let Some(time_us) = page.take_over_us.filter(|_| page.take_overs > 0) {
        let time = Duration::from_micros(time_us);
        text.push_str(&format!(
            "  has become the primary {} times, the last time within {time:.1?}\n",
            page.take_overs
        ));
    }
    text.push_str(&table(page));
    text.push('\n');
    text
}

fn role(page: &Replica) -> &'static str {
    let is_primary = page.primary.as_ref() == Some(&page.node);
    match page {
        Replica { waits: Some(_), .. } => "waits for the group to begin",
        Replica { joining: Some(Joining { failed: None, .. }), .. } => {
            "comes back into the group; it has a vote"
        }
        Replica { server_lost: true, .. } => "its server takes no connections any more",
        Replica { server_hangs: true, .. } => "its server does not answer as the others do",
        Replica { excluded: true, .. } => "out of the group, its data are old; it has a vote",
        Replica { serving: true, .. } => "primary, serves clients",
        Replica { server, .. } if server.is_empty() => "witness",
        Replica { epoch: 0, .. } => "has no view yet",
        _ if is_primary => "primary, waits for a quorum",
        Replica { nodes, node, .. } if nodes.iter().any(|other| other.name == *node && other.member) => {
            "backup"
        }
        _ => "no member, its server has no data of the group; it has a vote",
    }
}

fn table(page: &Replica) -> String {
    // Only the primary knows how far others are, and only who leads the vote whether they answer.
    let mut table = plain_table(&["NODE", "ADDRESS", "ROLE", "VOTE", "LINK", "ANSWERS", "INDEX", "COMPARED"]);
    for node in &page.nodes {
        let link = match node {
            _ if node.name == page.node => "itself",
            _ if node.linked => "up",
            _ if node.witness || page.server.is_empty() => "",
            _ => "down",
        };
        let is_own = node.name == page.node;
        let answers = match node.answers {
            _ if is_own => "",
            Some(true) => "yes",
            Some(false) => "no",
            None => "",
        };
        let of_own = |index: u64| Some(index).filter(|_| is_own && page.epoch > 0 && !page.server.is_empty());
        let index = of_own(page.last_index).or(node.acked_index);
        let compared = of_own(page.compared_index).or(node.compared_index);
        table.add_row([
            clean(&node.name),
            clean(&node.address),
            role_of(node, page).to_owned(),
            if node.voter { "yes" } else { "no" }.to_owned(),
            link.to_owned(),
            answers.to_owned(),
            index.map(grouped).unwrap_or_default(),
            compared.map(grouped).unwrap_or_default(),
        ]);
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Left);
    }
    format!("{table}\n")
}

fn role_of(node: &Node, page: &Replica) -> &'static str {
    let is_leader = page.leader.as_ref() == Some(&node.name);
    match (page.primary.as_ref() == Some(&node.name), is_leader) {
        (true, true) => "primary, leader",
        (true, false) => "primary",
        (false, _) if node.witness => {
            if is_leader {
                "witness, leader"
            } else {
                "witness"
            }
        }
        (false, _) if node.member => {
            if is_leader {
                "backup, leader"
            } else {
                "backup"
            }
        }
        (false, true) => "out, leader",
        (false, false) => "out",
    }
}

/// What has happened, one event a line.
pub(super) fn events(explained: &Explained) -> String {
    if explained.events.is_empty() {
        return format!("nothing has happened since node {} was started\n", clean(&explained.node));
    }
    let mut table = plain_table(&["TIME", "VIEW", "WHAT", "WHY", "PAUSE"]);
    for event in &explained.events {
        table.add_row([
            when(event.at_ms, humantime::format_rfc3339_millis),
            event.epoch.to_string(),
            clean(&event.what),
            clean(&event.why),
            event.pause_ms.map(|pause_ms| format!("{pause_ms} ms")).unwrap_or_default(),
        ]);
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Left);
    }
    format!("{table}\n")
}

/// For Prometheus.
pub(super) fn register(page: &Replica, registry: &mut Registry) {
    let labels = [("group", page.group.clone()), ("node", page.node.clone())];
    let labels = labels.map(|(name, value)| (name.into(), value.into()));
    let registry = registry.sub_registry_with_labels(labels.into_iter());
    let registry = registry.sub_registry_with_prefix("replica");
    let members = page.nodes.iter().filter(|node| node.member).count() as u64;
    for (name, help, value) in [
        ("serving", "Whether this node is the primary and serves clients", u64::from(page.serving)),
        ("view", "Number of the view", page.epoch),
        ("members", "Nodes in the view", members),
        ("excluded", "Whether this node is out of the group", u64::from(page.excluded)),
        ("connections", "Connections of clients that this node knows", page.connections),
        ("last_index", "Log index of the last entry that this node has", page.last_index),
        ("delivered_index", "Log index of the last entry that its server was given", page.delivered_index),
        ("compared_index", "Log index up to which its server's answers were compared", page.compared_index),
    ] {
        registry.register(name, help, gauge(value));
    }
    registry.register("take_overs", "Take-overs of this node", ConstCounter::new(page.take_overs));
    for (name, help, value) in [
        ("forwarded_packets", "Packets of clients passed on to another primary", page.forwarded_packets),
        ("injected_packets", "Packets of clients that another node has passed on", page.injected_packets),
        ("differences", "Times the server of a member was found to answer otherwise", page.differences),
        ("answers_not_compared", "Times answers of the server could not be compared", page.not_compared),
    ] {
        registry.register(name, help, ConstCounter::new(value));
    }
    registry.register(
        "queue_overflows",
        "Times the kernel had no room for packets",
        ConstCounter::new(page.overflows),
    );
    if let Some(time_us) = page.take_over_us {
        let time_s = Duration::from_micros(time_us).as_secs_f64();
        let help = "How long the last take-over took";
        registry.register_with_unit("take_over", help, Unit::Seconds, ConstGauge::new(time_s));
    }
}
