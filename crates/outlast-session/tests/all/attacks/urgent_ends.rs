//! A peer that announces urgent bytes which do not come.

use super::ALONE;
use super::raw::{Raw, bytes_of, fresh_id, hello};
use crate::common::{quick, within};
use outlast_session::proto::{Frame, FrameHeader};
use outlast_session::relay::{self, Control, Local};
use outlast_session::{Config, tokio as async_face};
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn an_urgent_byte_that_is_announced_at_the_end_does_not_keep_the_end_from_the_service() {
    let _shared = ALONE.read();
    within(|| {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        for said in [&b""[..], b"words"] {
            let services = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let at = services.local_addr().unwrap();
            let (sender, opened) = std::sync::mpsc::channel();
            runtime.spawn(async move {
                let config = Arc::new(Config { urgent: true, ..quick() });
                let listener = async_face::Listener::bind_with("127.0.0.1:0", &config).await.unwrap();
                sender.send(listener.local_addr()).unwrap();
                let session = listener.accept().await.unwrap();
                let local = Local::from_tcp(tokio::net::TcpStream::connect(at).await.unwrap()).unwrap();
                relay::run(session, local, Vec::new(), &Control::new()).await;
            });
            let mut raw = Raw::connect(opened.recv().unwrap());
            let mut hello = hello(fresh_id());
            hello.takes_urgent = true;
            raw.say(&bytes_of(&hello));
            let end = said.len() as u64;
            let mut bytes = Vec::new();
            Frame::Urgent { offset: end }.encode(0, &mut bytes);
            if !said.is_empty() {
                bytes.extend(FrameHeader::data(said.len(), 0).encode());
                bytes.extend(said);
            }
            Frame::End { end_offset: end }.encode(0, &mut bytes);
            raw.say(&bytes);
            let mut service = services.accept().unwrap().0;
            service.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let mut heard = Vec::new();
            service.read_to_end(&mut heard).expect("the end is passed on");
            assert_eq!(heard, said);
        }
        runtime.shutdown_background();
    });
}
