//! Pages.

use axum::http::header;
use axum::response::IntoResponse;

/// A page of one content type, which a browser must not take for another one.
pub fn page(content_type: &'static str, body: String) -> impl IntoResponse + use<> {
    ([(header::CONTENT_TYPE, content_type), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")], body)
}
