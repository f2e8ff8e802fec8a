//! What the client's log tells about its links, as it happens.

use crate::screen::Screen;
use indicatif::HumanCount;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::ChildStderr;
use std::thread::JoinHandle;

/// Tells until the program has ended.
pub fn follow(stderr: ChildStderr, screen: &Screen) -> JoinHandle<()> {
    let screen = screen.clone();
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            match serde_json::from_str::<Value>(&line) {
                Ok(entry) => {
                    if let Some(text) = told(&entry) {
                        screen.event(format!("session    {text}"));
                    }
                }
                Err(_) => screen.event(format!("           {line}")),
            }
        }
    })
}

fn told(entry: &Value) -> Option<String> {
    let fields = &entry["fields"];
    let text = |key: &str| match &fields[key] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    Some(match fields["message"].as_str()? {
        "connected" => format!("connected to {}, {} acknowledgements", text("peer"), text("mode")),
        "link lost" => {
            let cause = text("cause");
            // The words are enough.
            let cause = cause.split(" (os error").next().unwrap_or(&cause).to_lowercase();
            format!("link lost: {cause}")
        }
        "resumed" => format!(
            "resumed over {} ({}), the client sent {} bytes again",
            text("peer"),
            text("mode"),
            HumanCount(fields["resent_bytes"].as_u64().unwrap_or(0))
        ),
        "failed" => format!("failed: {}", text("error")),
        _ => return None,
    })
}
