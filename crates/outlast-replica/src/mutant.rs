//! Faults that the simulation has to find: each is one line of the core that is wrong.

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// An entry is stable that one member lacks.
    OneIsNotNeeded,
    /// A follower delivers what it has.
    DeliversUnstable,
    /// What an earlier primary has sent counts as sent by this one.
    ConfirmsAll,
    /// An entry is not replaced by the one that the primary has.
    KeepsOther,
    /// What is not known to be stable is dropped before it has come again.
    TruncatesAtStart,
    /// What was confirmed in this view is forgotten when the link is new.
    BeginsAgain,
    /// A node that catches up takes what members know to be right for its own.
    LearnerTrustsAll,
    /// Acknowledgements of other views count.
    AcksOfOtherViews,
    /// Acknowledgements of the last view count in this one.
    KeepsAcks,
    /// Entries of other views are taken.
    EntriesOfOtherViews,
    /// Entries are taken before the view has begun.
    EntriesBeforeStart,
    /// A follower appends what does not follow.
    GapIsPassedOver,
    /// A follower appends what it has.
    TakesTwice,
    /// A follower acknowledges what it does not have.
    AcksMore,
    /// A node becomes necessary that lacks something stable.
    PromotesEarly,
    /// A node becomes necessary that lacks something which was stable before this primary led. A test of its own finds that: in the
    /// simulation it takes 150,000 schedules.
    ForgetsWhatItInherited,
    /// A node becomes a member before it is necessary.
    PromotesSilently,
    /// The primary drops what others lack.
    ForgetsUnacked,
    /// A follower drops what is not stable.
    FollowerForgetsAll,
    /// A node that is out goes on.
    ExcludedGoesOn,
    /// The primary takes entries without limit.
    Unbounded,
    /// A follower waits to be called.
    NoHello,
    /// What a follower misses is not sent again.
    MissingIsPassedOver,
    /// The primary says nothing while nothing happens.
    NoHeartbeat,
    /// Followers do not learn what is stable.
    NeverTellsStable,
    /// A client gets an acknowledgement of what is not stable.
    AcksLeaveEarly,
    /// Kernels may acknowledge by themselves what is not stable.
    ProposedIsAcknowledged,
    /// A SYN-ACK leaves before the connection is stable.
    SynAckLeavesEarly,
    /// What a kernel says of a connection that it does not know leaves at once.
    StraysLeave,
    /// A kernel's reset leaves that no server has asked for.
    ResetsLeave,
    /// The answers end before that is stable.
    EndsBeforeItIsStable,
    /// A client that has not heard its SYN-ACK is not answered.
    SynIsNotAnswered,
    /// A restored socket gets acknowledgements of what its server has not said.
    AcksOfUnsaidEnter,
    /// A restored socket has nothing in its send queue.
    RestoresNoAnswers,
    /// A successor restores before all that may be stable is.
    TakesOverEarly,
    /// What a server says does not go to the client.
    ClientIsNotTold,
    /// A server gets what comes after the primary's server has ended the stream.
    ServerHearsMore,
    /// A node that joins does not get the answers that clients may lack.
    SnapshotForgetsAnswers,
    /// A node that joins takes for done what the copied server was not given.
    SnapshotIsAhead,
    /// A node that joins does not know the connections that were there.
    SnapshotForgetsConnections,
    /// Connections that are over are forgotten at once.
    ForgetsTimeWait,
    /// An older connection of the same client takes the place of a newer one.
    OldConnectionHides,
    /// A socket that is made again expects what has an index already.
    RestoresAtDelivered,
    /// A connection that was never stable is kept by a node that leads no longer.
    KeepsUnopened,
    /// A node that leads again goes on where it was.
    KeepsProposed,
    /// A new primary does not say that its server has ended a stream.
    EndsAreForgotten,
    /// Packets pass before all connections are restored.
    ServesTooEarly,
    /// A server gets what clients send as it comes.
    DeliversAtOnce,
    /// What a client says in answer to something comes before it.
    AnswersAreNotAwaited,
    /// A request that is late counts as one without an answer.
    PassesUnasked,
    /// What the server does not answer keeps all waiting.
    ProceedIsForgotten,
    /// A request that servers have ended never comes to them again.
    KeptForEver,
    /// What a client says behind such a request comes to servers before it.
    KeptIsOvertaken,
    /// Servers do not forget what a copy lacks.
    NothingIsForgotten,
    /// A primary puts the time of its own machine into the order, whatever servers have had before.
    ClockIsItsOwn,
    /// A server gets a new time while it works on what came before.
    ClockIsEarly,
    /// A server that owes an answer gets more before it has looked at a new time.
    TimeIsNotAwaited,
    /// A node that joins does not know what time its server's data are of.
    SnapshotForgetsTheTime,
    /// Answers are compared before the server has given all of them.
    ComparesEarly,
    /// What another primary's server has said is judged, too.
    JudgesOthers,
    /// A new primary does not say what its server has answered in its own way.
    OwnRepliesAreForgotten,
    /// What each server answers in its own way counts as the same.
    OwnRepliesAreSaid,
    /// All answers count as equal.
    ComparesNothing,
    /// Answers go out before other servers have given them, though they are to wait for that.
    AnswersGoOutAtOnce,
    /// One member fewer than are to agree is enough.
    OneFewerIsEnough,
    /// What others have agreed to is not given to clients when that is known late.
    AgreedIsForgotten,
    /// A member forgets what differs when there is another view.
    ForgetsDifferences,
    /// A primary that has not handed over in the end forgets what it has withheld.
    WithheldAreForgotten,
    /// A primary that has given the lease back goes on to serve.
    GivesBackAndServes,
    /// A lease counts as given back that was lent once more since then.
    TakesOldReturns,
    /// A primary goes on when its lease is over.
    ServesWithoutLease,
    /// What a primary has given an index before its lease was over is not waited for when it takes over again.
    LeadsAgainEarly,
    /// What was acknowledged in an earlier term counts for the lease.
    KeepsPromisesOfOtherTerms,
    /// A voter elects another leader as soon as it is asked.
    PromisesNothing,
    /// The lease is as long as the promise.
    NoMargin,
    /// Half of the voters are a majority.
    HalfIsEnough,
    /// A leader elects another one while it holds the lease.
    LeaderVotes,
    /// One that has lent its lease elects another leader as soon as it leads no more.
    VotesAtOnce,
    /// All that is left of a lease is lent, to a clock that may be slower.
    LendsAll,
    /// A leader names another primary while it has lent its lease.
    NamesTwo,
    /// A node stands for election without having asked.
    StandsUnasked,
    /// All nodes wait for the same time before they ask.
    SameDelay,
}
