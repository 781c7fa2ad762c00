//! HTTP responses with a content type.

use axum::http::header;
use axum::response::IntoResponse;

/// A response with this content type, which browsers must not guess (`nosniff`).
pub fn page(content_type: &'static str, body: impl IntoResponse) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, content_type), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")], body)
}
