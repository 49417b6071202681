//! The HTTP client below `object_store`: notes what each request was answered, and takes out of failures what must not be shown.
//!
//! Servers echo: S3 answers an expired session with the token itself, Azure a wrong signature with what was signed. Of a failure's body only the
//! store's name for it and its sentence are kept.

use async_trait::async_trait;
use futures::stream::StreamExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};

use super::trace::{Answer, Trace};

/// The services that give credentials to machines in the three clouds. They answer at once or never.
const METADATA: [&str; 3] = ["169.254.169.254", "169.254.170.2", "metadata.google.internal"];

/// A failure's body is read so far.
const LONGEST_BODY: usize = 64 << 10;

/// A failure's sentence is kept so far, in characters.
const LONGEST_TEXT: usize = 300;

/// Makes clients whose requests are noted in the trace of the call that sends them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        ReqwestConnector::default().connect(options).map(|inner| HttpClient::new(Traced(inner)))
    }
}

#[derive(Debug)]
struct Traced(HttpClient);

#[async_trait]
impl HttpService for Traced {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let trace = Trace::current();
        let metadata = request.uri().host().is_some_and(|host| METADATA.contains(&host));
        match self.0.execute(request).await {
            Ok(response) if response.status().as_u16() < 400 => {
                trace.note(Answer::Status { status: response.status().as_u16(), code: None, metadata });
                Ok(response)
            }
            Ok(response) => {
                let (status, (code, response)) = (response.status().as_u16(), told(response).await);
                trace.note(Answer::Status { status, code, metadata });
                Ok(response)
            }
            Err(error) if error.kind() == HttpErrorKind::Connect || metadata => {
                trace.note(Answer::Unreached { metadata });
                // Where there is no such service, asking again only takes time.
                Err(if metadata { HttpError::new(HttpErrorKind::Unknown, error) } else { error })
            }
            Err(error) => {
                trace.note(Answer::Cut);
                Err(error)
            }
        }
    }
}

/// The failure by the store's own name for it, and the response with nothing but that and its sentence.
async fn told(response: HttpResponse) -> (Option<String>, HttpResponse) {
    let (parts, body) = response.into_parts();
    let mut bytes = Vec::new();
    let mut pieces = body.bytes_stream();
    while let Some(Ok(piece)) = pieces.next().await {
        bytes.extend_from_slice(piece.get(..LONGEST_BODY.min(piece.len())).unwrap_or_default());
        if bytes.len() >= LONGEST_BODY {
            break;
        }
    }
    let named = parts.headers.get("x-ms-error-code").and_then(|code| code.to_str().ok()).map(str::to_owned);
    let (code, sentence) = code_and_sentence(&String::from_utf8_lossy(&bytes));
    let code = named.or(code);
    let text = [code.clone(), sentence].into_iter().flatten().collect::<Vec<_>>().join(": ");
    (code, HttpResponse::from_parts(parts, text.into()))
}

/// Of a failure's body, XML or JSON.
fn code_and_sentence(body: &str) -> (Option<String>, Option<String>) {
    if let Ok(json) = serde_json::from_str::<serde_json::Value>(body) {
        let text = |at: &str| json.pointer(at).and_then(|value| value.as_str()).map(plain);
        let code = ["/error/status", "/error/code", "/error", "/code", "/Code"].into_iter().find_map(text);
        let sentence =
            ["/error/message", "/error_description", "/message", "/Message"].into_iter().find_map(text);
        return (code, sentence);
    }
    let between = |tag: &str| {
        let (_, rest) = body.split_once(&format!("<{tag}>"))?;
        rest.split_once(&format!("</{tag}>")).map(|(text, _)| plain(text))
    };
    (between("Code"), between("Message"))
}

/// The first line, short, without control characters.
fn plain(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    line.chars().filter(|c| !c.is_control()).take(LONGEST_TEXT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told_of(body: &str) -> (Option<String>, Option<String>) {
        code_and_sentence(body)
    }

    #[test]
    fn a_failure_keeps_its_name_and_its_sentence_and_nothing_that_is_echoed() {
        let expired = "<?xml version=\"1.0\"?><Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message>\
                       <Token-0>hunter2</Token-0><RequestId>1</RequestId></Error>";
        assert_eq!(
            told_of(expired),
            (Some("ExpiredToken".into()), Some("The provided token has expired.".into()))
        );
        let azure = "<Error><Code>AuthenticationFailed</Code><Message>Server failed to authenticate the request.\nRequestId:x\n\
                     </Message><AuthenticationErrorDetail>hunter2</AuthenticationErrorDetail></Error>";
        assert_eq!(told_of(azure).1.unwrap(), "Server failed to authenticate the request.");
        let oauth = r#"{"error":"invalid_grant","error_description":"Bad\u001b[31m","assertion":"hunter2"}"#;
        assert_eq!(told_of(oauth), (Some("invalid_grant".into()), Some("Bad[31m".into())));
        let google = r#"{"error":{"code":403,"message":"no access","status":"PERMISSION_DENIED"}}"#;
        assert_eq!(told_of(google), (Some("PERMISSION_DENIED".into()), Some("no access".into())));
        assert_eq!(told_of("hunter2"), (None, None));
    }
}
