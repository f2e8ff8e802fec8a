//! The handshake at either end, without any I/O. `PROTOCOL.md`, sections 3 and 6.
//!
//! # Contract
//!
//! Client: send what [`ClientHandshake::start`] gives, then call [`feed`](ClientHandshake::feed) whenever more has
//! been received, always with everything received and not yet consumed. Server: the same with
//! [`ServerHandshake::feed`]; when the Hello is there, decide (see [`Registry`](super::Registry)) and send what
//! [`accept`](ServerHandshake::accept) or [`refuse`] gives.
//!
//! The stream follows the last message immediately. A step that uses up input says how many bytes; what is behind
//! them is not touched. Time limits are the shell's: nothing here waits. A peer that dribbles costs at most
//! [`HANDSHAKE_BYTES_MAX`] of memory.

use super::auth::{AbortKey, Binding, Psk, SessionKey};
use super::hello::{Hello, Intent, Welcome};
use super::wire::{
    self, Answer, Challenge, Decoded, MESSAGE_BYTES_MAX, Message, PROOF_FIELD_BYTES, Refusal, Refuse,
    SecurityKind, SessionId, VERSION, VERSION_MIN, WireError,
};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The most that either side has to buffer before a message is complete or wrong.
pub const HANDSHAKE_BYTES_MAX: usize = MESSAGE_BYTES_MAX;

/// Why a handshake failed on this side. The link is of no use any more; the session may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The peer sent something else.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The peer does not hold the key it should.
    #[error("peer could not prove that it holds the key: check that both sides use the same key file")]
    BadProof,
    /// The server welcomed another link than the one that was asked for.
    #[error("peer welcomed a link that was not asked for")]
    Mismatch,
    /// There is no key to resume with.
    #[error("session has no key to be resumed with")]
    MissingKey,
    /// The client uses another security than this side wants.
    #[error("peer uses {used} security, this side wants {wanted}")]
    Security {
        /// What this side is configured for.
        wanted: SecurityKind,
        /// What the Hello says.
        used: SecurityKind,
    },
}

impl HandshakeError {
    /// What a server tells the peer about it; `None` for peers that would not understand.
    pub const fn refusal(&self) -> Option<Refusal> {
        match *self {
            Self::Wire(WireError::Foreign(_)) => None,
            Self::Wire(WireError::Version(_)) => Some(Refusal::Version { min: VERSION_MIN, max: VERSION }),
            Self::BadProof | Self::MissingKey => Some(Refusal::BadKey),
            Self::Security { wanted, .. } => Some(Refusal::SecurityRequired { wanted }),
            Self::Wire(_) | Self::Mismatch => Some(Refusal::Malformed),
        }
    }
}

/// What a client proves itself with.
#[derive(Clone, Debug)]
pub enum Credentials {
    /// Nothing but the session's id.
    Open,
    /// A shared key.
    Psk {
        /// The key, used for opening.
        psk: Psk,
        /// The session's own key, used for resuming: what the last [`Welcomed`] gave.
        key: Option<SessionKey>,
    },
    /// TLS below.
    Tls {
        /// Exported from this very link under [`BINDING_LABEL`](super::BINDING_LABEL).
        binding: [u8; 32],
        /// The session's own key, used for resuming: what the last [`Welcomed`] gave.
        key: Option<SessionKey>,
    },
    /// For giving a session up, and nothing else (PROTOCOL 6.9).
    Abort {
        /// That the session was opened with.
        security: SecurityKind,
        /// With TLS: as above.
        binding: Binding,
        /// Made from the session's own key.
        key: AbortKey,
    },
}

impl Credentials {
    const fn kind(&self) -> SecurityKind {
        match self {
            Self::Open => SecurityKind::Open,
            Self::Psk { .. } => SecurityKind::Psk,
            Self::Tls { .. } => SecurityKind::Tls,
            Self::Abort { security, .. } => *security,
        }
    }

    const fn binding(&self) -> Binding {
        match self {
            Self::Tls { binding, .. } => Some(*binding),
            Self::Abort { binding, .. } => *binding,
            Self::Open | Self::Psk { .. } => None,
        }
    }

    /// The proof in a Hello that does not open; the Hello ends with a field for it.
    fn proof(&self, intent: Intent, hello: &[u8]) -> Result<Option<[u8; 32]>, HandshakeError> {
        let proof = match self {
            Self::Open => return Ok(None),
            Self::Psk { key, .. } | Self::Tls { key, .. } => {
                let key = key.as_ref().ok_or(HandshakeError::MissingKey)?;
                key.resume_proof(&self.binding(), without_proof(hello))
            }
            Self::Abort { key, .. } if intent == Intent::Abort => {
                key.abort_proof(&self.binding(), without_proof(hello))
            }
            Self::Abort { .. } => return Err(HandshakeError::MissingKey),
        };
        Ok(Some(proof.into_bytes()))
    }
}

/// The server has accepted the link.
#[derive(Clone, Debug)]
pub struct Welcomed {
    /// What it said.
    pub welcome: Welcome,
    /// To be used for the next resume. `None` with `open` security.
    pub session_key: Option<SessionKey>,
    /// Input used up; the server's stream follows.
    pub consumed_bytes: usize,
}

/// What comes next for a client.
#[derive(Clone, Debug)]
pub enum ClientStep {
    /// Receive more.
    NeedMore,
    /// Drop so much input, send these bytes, go on.
    Send {
        /// To be sent.
        bytes: Vec<u8>,
        /// Input used up.
        consumed_bytes: usize,
    },
    /// Done.
    Welcomed(Box<Welcomed>),
    /// The server said no.
    Refused(Refuse),
    /// The server broke the rules, or is not one.
    Failed(HandshakeError),
}

/// The client's side of one handshake.
#[derive(Clone, Debug)]
pub struct ClientHandshake {
    hello: Hello,
    hello_bytes: Vec<u8>,
    credentials: Credentials,
    nonce: [u8; 32],
    session_key: Option<SessionKey>,
    challenge_due: bool,
}

impl ClientHandshake {
    /// Prepares the handshake that begins with `hello`, whose security, nonce and proof are filled in here.
    ///
    /// `nonce` is 32 unpredictable bytes, fresh for every link, with one exception: the openings of one session over
    /// TLS all use the same.
    ///
    /// # Errors
    /// [`HandshakeError::MissingKey`] for a resume or an abort that needs a key and has none.
    pub fn new(mut hello: Hello, credentials: Credentials, nonce: [u8; 32]) -> Result<Self, HandshakeError> {
        hello.security = credentials.kind();
        hello.nonce = (hello.security != SecurityKind::Open).then_some(nonce);
        hello.proof = None;
        let session_key = match (&credentials, hello.intent) {
            (Credentials::Tls { .. }, Intent::Open) => Some(SessionKey::from_opening(&hello.id, &nonce)),
            (Credentials::Abort { .. }, Intent::Open) => return Err(HandshakeError::MissingKey),
            (_, Intent::Open) => None,
            (Credentials::Psk { key, .. } | Credentials::Tls { key, .. }, _) => key.clone(),
            (Credentials::Open | Credentials::Abort { .. }, _) => None,
        };
        if hello.intent != Intent::Open && hello.security != SecurityKind::Open {
            // PROTOCOL 6.4: the proof covers all of the message before it.
            hello.proof = Some([0; 32]);
            let unproven = Message::Hello(hello.clone()).to_bytes();
            hello.proof = credentials.proof(hello.intent, &unproven)?;
        }
        let challenge_due = hello.security == SecurityKind::Psk && hello.intent == Intent::Open;
        let hello_bytes = Message::Hello(hello.clone()).to_bytes();
        Ok(Self { hello, hello_bytes, credentials, nonce, session_key, challenge_due })
    }

    /// The bytes to be sent first.
    pub fn start(&self) -> &[u8] {
        &self.hello_bytes
    }

    /// The Hello as it is sent.
    pub const fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Whether the stream may follow [`start`](Self::start) at once.
    pub const fn carries_early_data(&self) -> bool {
        self.hello.carries_early_data()
    }

    /// Looks at everything received and not yet consumed.
    pub fn feed(&mut self, bytes: &[u8]) -> ClientStep {
        let (message, consumed_bytes) = match wire::decode(bytes) {
            Ok(Decoded::Message { message, consumed_bytes }) => (message, consumed_bytes),
            Ok(Decoded::NeedMore { .. }) => return ClientStep::NeedMore,
            Err(error) => return ClientStep::Failed(error.into()),
        };
        let step = match message {
            Message::Refuse(refuse) => return ClientStep::Refused(refuse),
            Message::Challenge(challenge) if self.challenge_due => self.answer(&challenge, consumed_bytes),
            Message::Welcome(welcome) if !self.challenge_due => {
                self.welcomed(welcome, bytes.get(..consumed_bytes).unwrap_or_default())
            }
            other => Err(WireError::OutOfTurn(other.kind()).into()),
        };
        step.unwrap_or_else(ClientStep::Failed)
    }

    fn answer(&mut self, challenge: &Challenge, consumed_bytes: usize) -> Result<ClientStep, HandshakeError> {
        let Credentials::Psk { psk, .. } = &self.credentials else { return Err(HandshakeError::MissingKey) };
        // PROTOCOL 6.3: the server proves itself first.
        if !psk.server_proof(&self.hello_bytes, &challenge.nonce).is(&challenge.proof) {
            return Err(HandshakeError::BadProof);
        }
        let proof = psk.client_proof(&self.hello_bytes, &challenge.nonce).into_bytes();
        self.session_key = Some(psk.session_key(&self.hello.id, &self.nonce, &challenge.nonce));
        self.challenge_due = false;
        Ok(ClientStep::Send { bytes: Message::Answer(Answer { proof }).to_bytes(), consumed_bytes })
    }

    fn welcomed(&self, welcome: Welcome, bytes: &[u8]) -> Result<ClientStep, HandshakeError> {
        if let Some(key) = &self.session_key {
            let proof = welcome.proof.ok_or(HandshakeError::BadProof)?;
            let binding = self.credentials.binding();
            if !key.welcome_proof(&binding, &self.nonce, without_proof(bytes)).is(&proof) {
                return Err(HandshakeError::BadProof);
            }
        }
        if welcome.epoch != self.hello.epoch || welcome.mode != self.hello.mode {
            return Err(HandshakeError::Mismatch);
        }
        let session_key = self.session_key.clone();
        Ok(ClientStep::Welcomed(Box::new(Welcomed { welcome, session_key, consumed_bytes: bytes.len() })))
    }
}

/// What a server wants proven.
#[derive(Clone, Debug)]
pub enum Demand {
    /// Nothing but the session's id.
    Open,
    /// A shared key.
    Psk(Psk),
    /// TLS below.
    Tls {
        /// Exported from this very link under [`BINDING_LABEL`](super::BINDING_LABEL).
        binding: [u8; 32],
    },
}

impl Demand {
    const fn kind(&self) -> SecurityKind {
        match self {
            Self::Open => SecurityKind::Open,
            Self::Psk(_) => SecurityKind::Psk,
            Self::Tls { .. } => SecurityKind::Tls,
        }
    }

    const fn binding(&self) -> Binding {
        match self {
            Self::Tls { binding } => Some(*binding),
            Self::Open | Self::Psk(_) => None,
        }
    }
}

/// What the client has proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// As much as the security asks for: it may open the session, or resume it.
    Proven,
    /// Nothing: it is told that there is no such session, whether there is one or not.
    Unproven,
}

/// A Hello that is to be decided on.
#[derive(Clone, Debug)]
pub struct Greeted {
    /// What the client wants.
    pub hello: Hello,
    /// What it has proven.
    pub auth: Auth,
    /// The session's key from now on, if the link is accepted.
    pub session_key: Option<SessionKey>,
    /// Input used up; the client's stream follows if the Hello [carries early
    /// data](Hello::carries_early_data).
    pub consumed_bytes: usize,
}

/// What comes next for a server.
#[derive(Clone, Debug)]
pub enum ServerStep {
    /// Receive more.
    NeedMore,
    /// Drop so much input, send these bytes, go on.
    Send {
        /// To be sent.
        bytes: Vec<u8>,
        /// Input used up.
        consumed_bytes: usize,
    },
    /// Look up the key of this session, call [`ServerHandshake::provide_key`].
    NeedKey {
        /// The session.
        id: SessionId,
    },
    /// Decide, then call [`ServerHandshake::accept`] or [`refuse`]; what aborts is always answered by the latter.
    Greeted(Box<Greeted>),
    /// Send [`HandshakeError::refusal`], if there is one, and close.
    Failed(HandshakeError),
}

/// Where the server is.
#[derive(Clone, Debug)]
enum Waiting {
    Hello,
    Key { hello: Box<Hello>, bytes: Vec<u8> },
    Answer { hello: Box<Hello>, bytes: Vec<u8> },
    Decision { binding: Binding, client_nonce: [u8; 32], key: Option<SessionKey> },
    Nothing,
}

/// The server's side of one handshake.
#[derive(Clone, Debug)]
pub struct ServerHandshake {
    demand: Demand,
    nonce: [u8; 32],
    waiting: Waiting,
}

impl ServerHandshake {
    /// Waits for a Hello. `nonce` is 32 fresh and unpredictable bytes; only `psk` openings use it.
    pub const fn new(demand: Demand, nonce: [u8; 32]) -> Self {
        Self { demand, nonce, waiting: Waiting::Hello }
    }

    /// Looks at everything received and not yet consumed.
    pub fn feed(&mut self, bytes: &[u8]) -> ServerStep {
        let step = match core::mem::replace(&mut self.waiting, Waiting::Nothing) {
            waiting @ (Waiting::Hello | Waiting::Answer { .. }) => match wire::decode(bytes) {
                Ok(Decoded::NeedMore { .. }) => {
                    self.waiting = waiting;
                    return ServerStep::NeedMore;
                }
                Ok(Decoded::Message { message, consumed_bytes }) => {
                    let consumed = bytes.get(..consumed_bytes).unwrap_or_default();
                    self.message(waiting, message, consumed)
                }
                Err(error) => Err(error.into()),
            },
            waiting => {
                // The shell owes an answer first; the bytes stay with it.
                self.waiting = waiting;
                return ServerStep::NeedMore;
            }
        };
        step.unwrap_or_else(ServerStep::Failed)
    }

    fn message(
        &mut self,
        waiting: Waiting,
        message: Message,
        bytes: &[u8],
    ) -> Result<ServerStep, HandshakeError> {
        match (waiting, message) {
            (Waiting::Hello, Message::Hello(hello)) => self.hello(hello, bytes),
            (Waiting::Answer { hello, bytes: hello_bytes }, Message::Answer(answer)) => {
                self.answer(*hello, &hello_bytes, &answer, bytes.len())
            }
            (_, other) => Err(WireError::OutOfTurn(other.kind()).into()),
        }
    }

    fn hello(&mut self, hello: Hello, bytes: &[u8]) -> Result<ServerStep, HandshakeError> {
        let wanted = self.demand.kind();
        if hello.security != wanted {
            return Err(HandshakeError::Security { wanted, used: hello.security });
        }
        match (&self.demand, hello.intent) {
            (Demand::Open, _) => Ok(self.greeted(hello, Auth::Proven, None, bytes.len())),
            (Demand::Psk(psk), Intent::Open) => {
                hello.nonce.ok_or(HandshakeError::BadProof)?;
                // PROTOCOL 6.3
                let proof = psk.server_proof(bytes, &self.nonce).into_bytes();
                let challenge = Message::Challenge(Challenge { nonce: self.nonce, proof });
                self.waiting = Waiting::Answer { hello: Box::new(hello), bytes: bytes.to_vec() };
                Ok(ServerStep::Send { bytes: challenge.to_bytes(), consumed_bytes: bytes.len() })
            }
            (Demand::Psk(_) | Demand::Tls { .. }, _) => {
                let id = hello.id;
                self.waiting = Waiting::Key { hello: Box::new(hello), bytes: bytes.to_vec() };
                Ok(ServerStep::NeedKey { id })
            }
        }
    }

    fn answer(
        &mut self,
        hello: Hello,
        hello_bytes: &[u8],
        answer: &Answer,
        consumed_bytes: usize,
    ) -> Result<ServerStep, HandshakeError> {
        let (Demand::Psk(psk), Some(client_nonce)) = (&self.demand, &hello.nonce) else {
            return Err(HandshakeError::MissingKey);
        };
        if !psk.client_proof(hello_bytes, &self.nonce).is(&answer.proof) {
            return Err(HandshakeError::BadProof);
        }
        let key = psk.session_key(&hello.id, client_nonce, &self.nonce);
        Ok(self.greeted(hello, Auth::Proven, Some(key), consumed_bytes))
    }

    /// The answer to [`ServerStep::NeedKey`]: the key of the session, `None` if there is and was no such session.
    pub fn provide_key(&mut self, key: Option<SessionKey>) -> ServerStep {
        let Waiting::Key { hello, bytes } = core::mem::replace(&mut self.waiting, Waiting::Nothing) else {
            return ServerStep::Failed(HandshakeError::MissingKey);
        };
        self.check_key(*hello, &bytes, key).unwrap_or_else(ServerStep::Failed)
    }

    fn check_key(
        &mut self,
        hello: Hello,
        bytes: &[u8],
        key: Option<SessionKey>,
    ) -> Result<ServerStep, HandshakeError> {
        let (auth, key) = match hello.intent {
            // PROTOCOL 6.5: opening a known session again takes the nonce it was opened with.
            Intent::Open => {
                let client_nonce = hello.nonce.ok_or(HandshakeError::BadProof)?;
                let opened = SessionKey::from_opening(&hello.id, &client_nonce);
                if key.is_some_and(|known| known != opened) {
                    return Err(HandshakeError::BadProof);
                }
                (Auth::Proven, Some(opened))
            }
            // PROTOCOL 3.7: a wrong proof and a session that is not known take the same way, and the same time.
            Intent::Resume | Intent::Abort => {
                let is_known = key.is_some();
                let key = key.unwrap_or(SessionKey::from_bytes([0; 32]));
                let (binding, unproven) = (self.demand.binding(), without_proof(bytes));
                let expected = key.resume_proof(&binding, unproven);
                // PROTOCOL 6.9
                let to_abort = key.abort_key(&hello.id).abort_proof(&binding, unproven);
                let fits = hello.nonce.is_some()
                    && hello.proof.is_some_and(|proof| {
                        expected.is(&proof) | (to_abort.is(&proof) & (hello.intent == Intent::Abort))
                    });
                if fits && is_known { (Auth::Proven, Some(key)) } else { (Auth::Unproven, None) }
            }
        };
        Ok(self.greeted(hello, auth, key, bytes.len()))
    }

    fn greeted(
        &mut self,
        hello: Hello,
        auth: Auth,
        key: Option<SessionKey>,
        consumed_bytes: usize,
    ) -> ServerStep {
        self.waiting = Waiting::Decision {
            binding: self.demand.binding(),
            client_nonce: hello.nonce.unwrap_or_default(),
            key: key.clone(),
        };
        ServerStep::Greeted(Box::new(Greeted { hello, auth, session_key: key, consumed_bytes }))
    }

    /// The bytes of `welcome`, with the proof that the client expects. The server's stream follows.
    pub fn accept(&mut self, mut welcome: Welcome) -> Vec<u8> {
        welcome.proof = None;
        if let Waiting::Decision { binding, client_nonce, key: Some(key) } = &self.waiting {
            welcome.proof = Some([0; 32]);
            let unproven = Message::Welcome(welcome.clone()).to_bytes();
            let proof = key.welcome_proof(binding, client_nonce, without_proof(&unproven));
            welcome.proof = Some(proof.into_bytes());
        }
        self.waiting = Waiting::Nothing;
        Message::Welcome(welcome).to_bytes()
    }
}

/// The bytes that turn a client away. Close the link when they are sent.
pub fn refuse(refusal: impl Into<Refuse>) -> Vec<u8> {
    Message::Refuse(refusal.into()).to_bytes()
}

/// A message that ends with a proof, up to that field.
fn without_proof(message: &[u8]) -> &[u8] {
    message.get(..message.len().saturating_sub(PROOF_FIELD_BYTES)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
