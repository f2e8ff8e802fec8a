//! Prometheus metrics over HTTP.

mod limited;

use crate::admin::Administered;
use crate::exit::Failure;
use crate::pages;
use anyhow::Result;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use limited::Limited;
use outlast_session::relay::dial::plain;
use prometheus_client::encoding::text::encode;
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
pub async fn serve<T: Administered>(listener: TcpListener, instance: Arc<T>) {
    let router = axum::Router::new().route("/metrics", get(scrape::<T>)).with_state(instance);
    if let Err(error) = axum::serve(Limited::new(listener), router).await {
        tracing::error!("metrics: {error}");
    }
}

async fn scrape<T: Administered>(State(instance): State<Arc<T>>) -> Response {
    let status = instance.status().await;
    let mut text = String::new();
    match encode(&mut text, &pages::registry(&status)) {
        Ok(()) => ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
