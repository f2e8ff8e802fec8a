//! Somebody else, who has seen what went over the wire.

use super::tcp::{ConnId, Side};
use super::world::World;
use outlast_session::proto::{
    Answer, ClientHandshake, Credentials, Datagram, DatagramKind, Hello, Intent, Message, SessionKey,
};

impl World {
    pub fn attack(&mut self) {
        match self.cx.random.below(7) {
            0 | 1 => self.replay(),
            2 => self.babble(),
            3 => self.guess_key(),
            4 => self.forge_datagram(),
            5 => self.guess_psk(),
            _ => self.hijack(),
        }
    }

    fn connect(&mut self, bytes: &[u8]) -> ConnId {
        let cx = &mut self.cx;
        let conn = cx.net.connect(cx.plan.buffers, true, false);
        cx.log(|| format!("a stranger makes connection {conn}"));
        let _ = cx.net.send(conn, Side::Client, bytes);
        self.server.accept(cx, conn);
        self.foreign_conns.push(conn);
        conn
    }

    /// A Hello that the server has accepted is of no use again.
    fn replay(&mut self) {
        let which = self.cx.random.next_u64() as usize;
        if !self.server.spent.is_empty() && !self.restarted {
            let hello = self.server.spent[which % self.server.spent.len()].clone();
            self.connect(&hello);
        }
    }

    /// A Hello that never arrived is as good for whoever took it off the path. The session may be lost then, not
    /// its bytes.
    fn hijack(&mut self) {
        if self.cx.plan.hijacks && !self.hellos.is_empty() {
            let which = self.cx.random.next_u64() as usize;
            let hello = self.hellos[which % self.hellos.len()].clone();
            self.hijacked = true;
            self.connect(&hello);
        }
    }

    fn babble(&mut self) {
        let mut bytes = [0; 24];
        self.cx.random.fill(&mut bytes);
        self.connect(&bytes);
    }

    /// Knows the session's id, and that it has a key, but not the key.
    fn guess_key(&mut self) {
        let cx = &mut self.cx;
        if !cx.plan.psk {
            return;
        }
        let mut hello = Hello::open(self.client.id, self.client.client.mode);
        hello.intent = if cx.random.one_in(4) { Intent::Abort } else { Intent::Resume };
        hello.epoch = 1 + cx.random.below(1000);
        let key = Some(SessionKey::from_bytes(cx.nonce()));
        let nonce = cx.nonce();
        let credentials = Credentials::Psk { psk: cx.psk.clone(), key };
        if let Ok(handshake) = ClientHandshake::new(hello, credentials, nonce) {
            let bytes = handshake.start().to_vec();
            self.connect(&bytes);
        }
    }

    /// Opens a session that is there once more, without the shared key.
    fn guess_psk(&mut self) {
        let cx = &mut self.cx;
        if !cx.plan.psk {
            return;
        }
        let mut hello = Hello::open(self.client.id, self.client.client.mode);
        hello.epoch = 1 + cx.random.below(1000);
        let nonce = cx.nonce();
        let credentials = Credentials::Psk { psk: cx.psk.clone(), key: None };
        if let Ok(handshake) = ClientHandshake::new(hello, credentials, nonce) {
            let mut bytes = handshake.start().to_vec();
            Message::Answer(Answer { proof: cx.nonce() }).encode(&mut bytes);
            self.connect(&bytes);
        }
    }

    /// Without the key nobody acknowledges anything.
    fn forge_datagram(&mut self) {
        let cx = &mut self.cx;
        if !cx.plan.psk {
            return;
        }
        let key = SessionKey::from_bytes(cx.nonce());
        let kind = [DatagramKind::Ack, DatagramKind::HalfClose, DatagramKind::Confirm { of: 4 }];
        let kind = kind[cx.random.below(3) as usize];
        let offset = cx.random.below(1 << 16);
        let datagram = Datagram { kind, needs_confirm: false, id: self.client.id, epoch: 1, offset };
        for key in [None, Some(&key)] {
            let to_client = datagram.encode(key, false);
            self.client.receive_datagram(cx, to_client.as_ref());
            if let Some(end) = self.server.end() {
                end.receive_datagram(cx, datagram.encode(key, true).as_ref());
            }
        }
    }
}
