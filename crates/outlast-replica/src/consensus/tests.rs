//! Groups in one process, over real TCP connections.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use super::*;
use std::time::Instant;
use tokio::io::AsyncReadExt;

/// Long: on a busy machine nobody is to be taken for dead who lives.
const PROMISE_MS: u64 = 1_000;
const HEARTBEAT_MS: u64 = 100;
const PATIENCE: Duration = Duration::from_secs(30);
const WITNESS: NodeId = NodeId(9);

struct Group {
    nodes: BTreeMap<NodeId, Arc<Consensus>>,
    members: BTreeMap<NodeId, Member>,
}

async fn node(me: NodeId, is_witness: bool) -> (Arc<Consensus>, Member) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let name = format!("node {}", me.0);
    node_at(me, is_witness, name, listener).await
}

async fn node_at(
    me: NodeId,
    is_witness: bool,
    name: String,
    listener: std::net::TcpListener,
) -> (Arc<Consensus>, Member) {
    let address = listener.local_addr().unwrap().to_string();
    let settings = Settings {
        me,
        is_witness,
        promise_ms: PROMISE_MS,
        heartbeat_ms: HEARTBEAT_MS,
        seed: me.0,
        listed: Vec::new(),
        first: None,
    };
    let consensus = Arc::new(Consensus::start(settings).await.unwrap());
    listener.set_nonblocking(true).unwrap();
    let (listener, serving) =
        (tokio::net::TcpListener::from_std(listener).unwrap(), Arc::downgrade(&consensus));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await
            && let Some(consensus) = serving.upgrade()
        {
            let mut magic = [0; MAGIC.len()];
            if stream.read_exact(&mut magic).await.is_ok() && magic == MAGIC {
                consensus.serve(stream);
            }
        }
    });
    (consensus, Member { name, address, is_witness })
}

impl Group {
    /// Nodes with servers, counted from 1, and a witness. Who founds the group leads it first.
    async fn new(servers: u64, founder: NodeId) -> Self {
        let mut group = Self { nodes: BTreeMap::new(), members: BTreeMap::new() };
        for me in (1..=servers).map(NodeId).chain([WITNESS]) {
            let (consensus, member) = node(me, me == WITNESS).await;
            group.nodes.insert(me, consensus);
            group.members.insert(me, member);
        }
        group.nodes[&founder].found(group.members.clone()).await.unwrap();
        group
    }

    fn view(&self, node: NodeId) -> Option<View> {
        self.nodes[&node].decided().borrow().view.clone()
    }

    /// Who may serve now. More than one never.
    fn serving(&self) -> Option<NodeId> {
        let may = |(node, consensus): (&NodeId, &Arc<Consensus>)| {
            let epoch = self.view(*node)?.epoch;
            consensus.may_serve(epoch).then_some(*node)
        };
        // The first one is asked again: it may have lost the lease before the next one had it.
        let serving: Vec<NodeId> = self.nodes.iter().filter_map(may).collect();
        let serving: Vec<NodeId> =
            serving.into_iter().filter(|node| may((node, &self.nodes[node])).is_some()).collect();
        assert!(serving.len() < 2, "{serving:?} serve at once");
        serving.first().copied()
    }

    async fn wait(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            let _ = self.serving();
            let views: Vec<_> = self.nodes.keys().map(|node| (*node, self.view(*node))).collect();
            assert!(begun.elapsed() < PATIENCE, "{what}: {views:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Waits until the primary of a view of these nodes serves, and all know of it. Which one that is.
    async fn serves(&self, members: &[u64]) -> NodeId {
        let members: Vec<NodeId> = members.iter().copied().map(NodeId).collect();
        self.wait("nobody serves", |group| {
            let has_view = |node: &NodeId| group.view(*node).is_some_and(|view| view.members == members);
            group.nodes.keys().all(has_view) && group.serving().is_some()
        })
        .await;
        let view = self.view(*self.nodes.keys().next().unwrap()).unwrap();
        assert!(view.has(view.primary));
        view.primary
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_serves_and_when_it_dies_another_one_does() {
    let mut group = Group::new(3, NodeId(1)).await;
    let first = group.serves(&[1, 2, 3]).await;
    assert_eq!(first, NodeId(1));
    drop(group.nodes.remove(&first));
    let second = group.serves(&[2, 3]).await;
    // One of the three has to go on with the witness.
    drop(group.nodes.remove(&second));
    let third = 5 - second.0;
    tokio::time::sleep(Duration::from_millis(2 * PROMISE_MS)).await;
    assert_eq!(group.serving(), None, "two of four voters are none of a majority");
    assert_eq!(group.view(NodeId(third)).unwrap().members.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_does_not_lead_borrows_the_lease() {
    let mut group = Group::new(2, WITNESS).await;
    assert_eq!(group.serves(&[1, 2]).await, NodeId(1));
    assert_eq!(group.nodes[&WITNESS].leader(), Some(WITNESS));
    // What it has borrowed runs out; the next leader lends it more, or is it itself. A busy machine may not see the time between.
    drop(group.nodes.remove(&WITNESS));
    let has_leader = |group: &Group| group.nodes[&NodeId(1)].leader().is_some_and(|leader| leader != WITNESS);
    group.wait("it serves on", |group| group.serving().is_none() || has_leader(group)).await;
    assert_eq!(group.serves(&[1, 2]).await, NodeId(1));
    assert!(has_leader(&group));
}

/// Strangers, and nodes that are broken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_are_no_message_harm_nobody() {
    let group = Group::new(2, NodeId(1)).await;
    group.serves(&[1, 2]).await;
    let mut random = outlast_stream::SplitMix64::new(1);
    for round in 0..500_usize {
        let node = NodeId(1 + random.next_u64() % 2);
        let mut stream = tokio::net::TcpStream::connect(&group.members[&node].address).await.unwrap();
        let meant = [&MAGIC[..], &node.0.to_be_bytes()].concat();
        tokio::io::AsyncWriteExt::write_all(&mut stream, &meant).await.unwrap();
        let mut bytes: Vec<u8> = (0..round).map(|_| random.next_u64().to_le_bytes()[0]).collect();
        // Half of them have a length that fits, and the number of a request.
        if let Some((head, [kind, ..])) = bytes.split_first_chunk_mut()
            && round % 2 == 0
        {
            *head = u32::try_from(round - 4).unwrap().to_le_bytes();
            *kind %= 7;
        }
        tokio::io::AsyncWriteExt::write_all(&mut stream, &bytes).await.unwrap();
    }
    assert_eq!(group.serves(&[1, 2]).await, NodeId(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_node_is_replaced_by_a_new_one_and_another_one_may_die_then() {
    let mut group = Group::new(2, NodeId(1)).await;
    let mut voters = [NodeId(1), NodeId(2)];
    group.serves(&[1, 2]).await;
    for round in 0..3_u64 {
        let dead = group.serving().unwrap_or(voters[0]);
        drop(group.nodes.remove(&dead));
        let live = voters.into_iter().find(|node| *node != dead).unwrap();
        assert_eq!(group.serves(&[live.0]).await, live);
        let new = NodeId(20 + round);
        let (consensus, member) = node(new, false).await;
        group.nodes.insert(new, consensus);
        group
            .wait("nobody leads", |group| group.nodes[&live].leader().is_some_and(|leader| leader != dead))
            .await;
        let leader = group.nodes[&live].leader().unwrap();
        group.nodes[&leader].replace(dead, new, member).await.unwrap();
        // The primary has given it what it has, and asks for it.
        let view = group.view(live).unwrap();
        let next = View { epoch: view.epoch + 1, primary: live, members: vec![live, new] };
        assert!(group.nodes[&leader].service.propose(Proposal::new(&next, Why::Silent)).await);
        assert_eq!(group.serves(&[live.0, new.0]).await, live);
        voters = [live, new];
    }
}

/// It knows nothing of what its earlier run has promised, and must not answer for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_started_again_at_its_address_is_another_one_and_gets_the_vote() {
    let mut group = Group::new(2, NodeId(1)).await;
    group.serves(&[1, 2]).await;
    for round in 0..2 {
        let (dead, new) = (NodeId(2 + 10 * round), NodeId(12 + 10 * round));
        drop(group.nodes.remove(&dead));
        let Member { name, address, .. } = group.members[&NodeId(2)].clone();
        let begun = Instant::now();
        let listener = loop {
            match std::net::TcpListener::bind(&address) {
                Ok(listener) => break listener,
                Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        let (consensus, member) = node_at(new, false, name, listener).await;
        // The leader goes on to call the dead one there, and nobody answers for it.
        group
            .wait("the dead one is a member", |group| {
                group.view(NodeId(1)).is_some_and(|view| view.members == [NodeId(1)])
            })
            .await;
        assert!(consensus.members().is_empty() && !consensus.is_voter());
        let leader = group.members[&NodeId(1)].address.clone();
        while !consensus.enter(&leader, member.clone()).await {
            assert!(begun.elapsed() < PATIENCE, "it does not get the vote");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let voters = group.nodes[&NodeId(1)].voters();
        assert_eq!(voters, BTreeSet::from([NodeId(1), new, WITNESS]));
        assert_eq!(group.nodes[&NodeId(1)].members().len(), 3);
        group.nodes.insert(new, consensus);
        group.wait("it has no vote", |group| group.nodes[&new].is_voter()).await;
    }
}

/// The same again, or one that adds nobody in order, is not decided.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn views_that_do_not_follow_are_refused() {
    let group = Group::new(2, NodeId(2)).await;
    let primary = group.serves(&[1, 2]).await;
    let leader = group.nodes[&WITNESS].leader().unwrap();
    let view = group.view(WITNESS).unwrap();
    let again = Proposal::new(&view, Why::Silent);
    let stranger = Proposal::new(
        &View { epoch: view.epoch + 1, primary: NodeId(7), members: vec![NodeId(7)] },
        Why::Silent,
    );
    for proposal in [again, stranger] {
        assert!(!group.nodes[&leader].service.propose(proposal).await);
    }
    assert_eq!(group.view(WITNESS), Some(view));
    assert_eq!(group.serves(&[1, 2]).await, primary);
    // And so is a second founding.
    assert!(group.nodes[&primary].found(group.members.clone()).await.is_err());
}

/// The log was cut by then: a copy of what is decided goes to the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_comes_late_gets_what_is_decided() {
    let mut group = Group::new(2, NodeId(1)).await;
    group.serves(&[1, 2]).await;
    let view = group.view(NodeId(1)).unwrap();
    for _ in 0..3 * LOG_ENTRIES_MAX {
        assert!(!group.nodes[&NodeId(1)].service.propose(Proposal::new(&view, Why::Silent)).await);
    }
    drop(group.nodes.remove(&NodeId(2)));
    group.serves(&[1]).await;
    let new = NodeId(20);
    let (consensus, member) = node(new, false).await;
    group.nodes.insert(new, consensus);
    group.nodes[&NodeId(1)].replace(NodeId(2), new, member).await.unwrap();
    group.wait("it knows nothing", |group| group.view(new) == group.view(NodeId(1))).await;
    assert_eq!(group.serves(&[1]).await, NodeId(1));
}
