//! Prometheus metrics over HTTP.

mod limited;

use crate::exit::Failure;
use crate::instance::{Instance, Numbers};
use anyhow::Result;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use limited::Limited;
use outlast_session::relay::dial::plain;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::{Registry, Unit};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;

/// The format that `encode` writes.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Listens for scrapes.
pub async fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .map_err(|error| Failure::system(format!("cannot serve metrics at {address}: {}", plain(&error))))
}

/// Answers scrapes until dropped.
pub async fn serve(listener: TcpListener, instance: Arc<Instance>) {
    let router = axum::Router::new().route("/metrics", get(scrape)).with_state(instance);
    if let Err(error) = axum::serve(Limited::new(listener), router).await {
        tracing::error!("metrics: {error}");
    }
}

async fn scrape(State(instance): State<Arc<Instance>>) -> Response {
    let numbers = instance.numbers().await;
    let mut text = String::new();
    match encode(&mut text, &registry(&numbers)) {
        Ok(()) => ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

type Labels = Vec<(&'static str, String)>;

/// Everything there is to tell, gathered for every scrape: nothing is counted twice, and nothing is kept.
fn registry(numbers: &Numbers) -> Registry {
    let mut registry = Registry::with_prefix("outlast");
    let live = Family::<Labels, Gauge>::default();
    for info in &numbers.sessions {
        let mode = info.mode.map_or_else(|| "none".to_owned(), |mode| mode.to_string());
        let labels = vec![("role", lower(info.role)), ("state", lower(info.state)), ("mode", mode)];
        live.get_or_create(&labels).inc();
    }
    registry.register("sessions", "Sessions now", live);
    let refusals = Family::<Labels, Counter>::default();
    for (reason, count) in &numbers.refusals {
        refusals.get_or_create(&vec![("reason", (*reason).to_owned())]).inc_by(*count);
    }
    registry.register("refusals", "Sessions refused, by reason", refusals);

    let gauge = |value: u64| ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
    let unacked = numbers.sessions.iter().map(|info| info.unacked_bytes).sum();
    registry.register_with_unit(
        "unacked",
        "Accepted, not known to be delivered",
        Unit::Bytes,
        gauge(unacked),
    );
    let memory = &numbers.memory;
    registry.register_with_unit("memory", "Held by all sessions", Unit::Bytes, gauge(memory.used_bytes));
    let budget = gauge(memory.budget_bytes);
    registry.register_with_unit("memory_budget", "What all sessions may hold", Unit::Bytes, budget);
    let pause = numbers.sessions.iter().filter_map(|info| info.pause_now_ms).max().unwrap_or(0);
    registry.register("pause_now_milliseconds", "Longest outage that is not over yet", gauge(pause));

    let totals = &numbers.totals;
    for (name, help, value) in [
        ("sessions_opened", "Sessions relayed since the start", totals.opened),
        ("sessions_completed", "Sessions that ended with everything delivered", totals.completed),
        ("sessions_failed", "Sessions that ended by an error", totals.failed),
        (
            "sessions_shed",
            "Sessions without a link that were ended to free memory or descriptors",
            numbers.memory.shed_sessions,
        ),
        ("outages", "Links lost and replaced, or not replaced in time", totals.outages),
        ("pause_milliseconds", "Time without a link, all sessions together", totals.pause_total_ms),
        ("resent_bytes", "Bytes sent more than once", totals.resent_bytes),
        ("spliced_bytes", "Bytes passed on without being copied, both ways", totals.spliced_bytes),
        ("written_bytes", "Bytes taken from local programs", totals.written_bytes),
        ("read_bytes", "Bytes given to local programs", totals.read_bytes),
    ] {
        registry.register(name, help, ConstCounter::new(value));
    }
    registry
}

fn lower(value: impl std::fmt::Debug) -> String {
    format!("{value:?}").to_lowercase()
}
