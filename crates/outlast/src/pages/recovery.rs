//! `outlast replicate recover`: what would be done.

use super::plain_table;
use crate::exit::clean;
use comfy_table::CellAlignment;
use outlast_admin::replica::{RecoveryNode, RecoveryPlan};

/// The nodes, what is lost, and what people have to know that no node knows.
pub(super) fn text(plan: &RecoveryPlan) -> String {
    let (group, from) = (clean(&plan.group), clean(&plan.from));
    let names = |those: fn(&&RecoveryNode) -> bool| {
        let nodes = plan.nodes.iter().filter(those);
        nodes.map(|node| clean(&node.name)).collect::<Vec<_>>().join(", ")
    };
    let mut text = format!(
        "The group {group} would begin again, as view {}, with the nodes {} and the data of {from}, which was a member until view {}.\n",
        plan.epoch,
        names(|node| node.takes_part),
        plan.last_epoch
    );
    if !plan.equal.is_empty() {
        let equal = clean(&plan.equal.join(", "));
        text.push_str(&format!(
            "So was {equal}: to have the data of another one, name it (outlast replicate recover NODE).\n"
        ));
    }
    text.push('\n');
    let mut table = plain_table(&["NODE", "ADDRESS", "NOW", "LAST VIEW", "THEN"]);
    for node in &plan.nodes {
        table.add_row([
            clean(&node.name),
            clean(&node.address),
            clean(&node.found),
            node.last_epoch.map(|epoch| epoch.to_string()).unwrap_or_default(),
            then(node, plan).to_owned(),
        ]);
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Left);
    }
    text.push_str(&format!("{table}\n\nLost:\n"));
    for lost in &plan.lost {
        text.push_str(&format!("- {}\n", clean(lost)));
    }
    let others = names(|node| !node.answers && !node.witness);
    if !others.is_empty() {
        text.push_str(&format!(
            "\nNobody here can see whether clients are served by {others} still, or will be as soon as these nodes reach each other again. Make sure that they are off. \
             Else two groups answer with different data until they hear of each other; then the older one ends.\n"
        ));
    }
    text
}

fn then(node: &RecoveryNode, plan: &RecoveryPlan) -> &'static str {
    match node {
        _ if node.name == plan.from => "serves, with its data",
        RecoveryNode { answers: false, .. } => "comes in when it is started again",
        RecoveryNode { takes_part: false, .. } => "comes in when its server takes connections",
        RecoveryNode { witness: true, .. } => "votes",
        _ => "votes, and gets a copy by join",
    }
}
