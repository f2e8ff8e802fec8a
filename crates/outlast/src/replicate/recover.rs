//! What people see before a group is founded again.

use super::instance::refused;
use outlast_admin::Answer;
use outlast_admin::replica::{Recovers, RecoveryNode, RecoveryPlan};
use outlast_replica::node::Node;
use outlast_replica::node::recovery::{Found, Plan, PlannedNode, describe};

/// The plan; with its number: does it.
pub async fn answer(node: &Node, from: Option<&str>, plan: Option<u64>) -> Answer {
    let status = node.status();
    let group = status.group;
    match plan {
        None => match node.plan_recovery(from).await {
            Ok(plan) => Answer::RecoveryPlan(Box::new(shown(&plan, group))),
            Err(error) => refused(&error),
        },
        Some(number) => match node.recover(from, number).await {
            Ok(_) => Answer::Recovers(Recovers { recovers: status.name }),
            Err(error) => refused(&error),
        },
    }
}

fn shown(plan: &Plan, group: String) -> RecoveryPlan {
    let recovery = &plan.recovery;
    let nodes = plan.nodes.iter().map(|node| RecoveryNode {
        name: node.name.clone(),
        address: node.address.clone(),
        witness: node.is_witness,
        takes_part: recovery.nodes.contains_key(&node.name),
        answers: !matches!(node.found, Found::Absent | Found::Differs(_)),
        found: describe(&node.found),
        last_epoch: node.last_epoch,
    });
    RecoveryPlan {
        group,
        plan: recovery.id,
        from: recovery.from.clone(),
        last_epoch: plan.last_epoch,
        epoch: recovery.epoch,
        nodes: nodes.collect(),
        equal: plan.equal().map(|node| node.name.clone()).collect(),
        lost: lost(plan),
    }
}

/// What is lost, and what may be.
fn lost(plan: &Plan) -> Vec<String> {
    let names = |nodes: &mut dyn Iterator<Item = &PlannedNode>| {
        nodes.map(|node| node.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let (from, last) = (&plan.recovery.from, plan.last_epoch);
    let mut lost = Vec::new();
    let newer = names(&mut plan.newer());
    if plan.known_epoch > last {
        let whose = if newer.is_empty() { String::new() } else { format!(" ({newer} was a member)") };
        lost.push(format!(
            "what clients have written after view {last}, the last one of {from}: there were others up to view {}{whose}",
            plan.known_epoch
        ));
    }
    if !plan.has_data {
        lost.push(format!(
            "what the server of {from} has lost as it began to get a copy of another one's data: perhaps all"
        ));
    }
    let unknown = names(&mut plan.unknown());
    if !unknown.is_empty() {
        lost.push(format!(
            "what clients have written in views of which only nodes were members that cannot be asked ({unknown}), if there were such views"
        ));
    }
    lost.push(format!(
        "if the server of {from} was started again since: what it has not kept on its disk, and, where {from} was not the primary, what clients were answered in the last \
         milliseconds"
    ));
    lost.push("all connections of clients: they have to connect again".to_owned());
    lost
}
