//! The hosts and links that the options ask for.

use super::LabArgs;
use crate::{Host, Lab, Link, Nat, Result, Target};

pub(super) struct Topology {
    pub(super) client: Host,
    pub(super) server: Host,
    pub(super) relay: Option<Host>,
    pub(super) target: Target,
    /// A drawing of it in one line.
    pub(super) drawing: String,
}

pub(super) fn build(lab: &Lab, args: &LabArgs) -> Result<Topology> {
    let (client, server) = (lab.host("client")?, lab.host("server")?);
    let mut hosts = vec![client.clone(), server.clone()];
    let mut relay = None;
    let (target, drawing) = if args.nat {
        let home = lab.router("nat")?;
        let inside = lab.connect(&client, &home)?;
        let outside = lab.wire(&home, &server, args.spec())?;
        client.route_default(&inside)?;
        let nat = Nat::masquerade(&home, &outside)?;
        hosts.push(home);
        // Faults of the link hit the client's, so that its address can change and its device go off.
        (Target::between(&client, &server, &inside).with_nat(&nat), "client --- nat ~~~ server")
    } else if args.relay.is_some() {
        let middle = lab.router("relay")?;
        let wire = through(lab, args, &client, &middle, &server)?;
        hosts.push(middle.clone());
        relay = Some(middle);
        (Target::between(&client, &server, &wire), "client ~~~ relay --- server")
    } else if args.two_paths {
        let middle = lab.router("middle")?;
        let wire = through(lab, args, &client, &middle, &server)?;
        let second = lab.wire(&client, &middle, args.spec())?;
        hosts.push(middle);
        let target = Target::between(&client, &server, &wire).with_second_link(&second);
        (target, "client ~~~ middle --- server, client ~~~ middle")
    } else {
        (Target::new(&lab.wire(&client, &server, args.spec())?), "client ~~~ server")
    };
    if args.cubic {
        hosts.iter().try_for_each(Host::use_cubic)?;
    }
    Ok(Topology { client, server, relay, target, drawing: drawing.to_owned() })
}

/// A wire from the client to the middle and a cable from there to the server; returns the wire.
fn through(lab: &Lab, args: &LabArgs, client: &Host, middle: &Host, server: &Host) -> Result<Link> {
    let wire = lab.wire(client, middle, args.spec())?;
    let far = lab.connect(server, middle)?;
    client.route_default(&wire)?;
    server.route_default(&far)?;
    Ok(wire)
}
