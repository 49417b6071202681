//! From what a store answered to what a caller must believe.
//!
//! The hazard is a create. `object_store` repeats it after 5xx, 429 and 408, and tells the last answer: a create that landed with a 500 comes back
//! as "exists" (by itself); one that landed and was then refused would look as if nothing had landed. So all answers are looked at:
//!
//! | the last answer | means | unless an earlier one was 5xx, 408 or cut off |
//! | --- | --- | --- |
//! | 412, 304; 409 with the code of an existing blob | the name is taken | the same: by whom, the caller finds out |
//! | any other 409 | another request holds the name just now; tried again here, then unknown | |
//! | 401, 403 | no access, nothing landed | unknown |
//! | 404 | no bucket, nothing landed | unknown |
//! | other 4xx but 408 and 429 | declined, nothing landed | unknown |
//! | no connection, each time | nothing landed | unknown |
//! | anything else | unknown | unknown |
//!
//! "Unknown" is [`StoreError::Io`], which [may have landed](StoreError::may_have_landed): callers read back.

use object_store::Error;

use super::trace::Answer;
use crate::store::error::StoreError;

/// What stores call a name that is taken. S3 says 412; its 409 is another request in progress.
const TAKEN: [&str; 2] = ["BlobAlreadyExists", "BlobImmutableDueToPolicy"];

/// What stores call a bucket that does not exist.
const NO_BUCKET: [&str; 3] = ["NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted"];

const NO_CREDENTIALS: &str = "there are no credentials in the environment, and no service of this machine gave any; set \
     AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (s3://), GOOGLE_APPLICATION_CREDENTIALS (gs://), or AZURE_STORAGE_ACCOUNT_NAME and \
     AZURE_STORAGE_ACCOUNT_KEY (az://)";

/// What to do about a create that failed.
#[derive(Debug)]
pub(super) enum Create {
    /// It is decided.
    Failed(StoreError),
    /// Another request holds the name: try again. What to say when that does not help.
    Conflict(StoreError),
}

/// What a failed create means. `root` is for what concerns the whole of it.
pub(super) fn of_create(root: &str, path: &str, error: Error, answers: &[Answer]) -> Create {
    let Some((last, earlier)) = answers.split_last() else { return Create::Failed(unsent(path, error)) };
    let taken = || StoreError::AlreadyExists { path: path.to_owned() };
    let unknown = |error: Error| StoreError::Io { path: path.to_owned(), op: "create", source: error.into() };
    match last {
        Answer::Status { status: 412 | 304, .. } => return Create::Failed(taken()),
        Answer::Status { status: 409, code, .. } if is(code, &TAKEN) => return Create::Failed(taken()),
        Answer::Status { status: 409, .. } => return Create::Conflict(unknown(error)),
        Answer::Status { status: 408 | 429, .. } => return Create::Failed(unknown(error)),
        _ => {}
    }
    if earlier.iter().any(may_have_landed) || (may_have_landed(last) && !is_metadata(last)) {
        return Create::Failed(unknown(error));
    }
    Create::Failed(of_call("create", root, path, error, answers))
}

/// What another failed call means.
pub(super) fn of_call(
    op: &'static str,
    root: &str,
    path: &str,
    error: Error,
    answers: &[Answer],
) -> StoreError {
    let Some(last) = answers.last() else { return unsent(path, error) };
    let not_done = |reason: &str, error: Error| StoreError::NotDone {
        path: path.to_owned(),
        op,
        reason: reason.to_owned(),
        source: error.into(),
    };
    match last {
        Answer::Status { status: 400.., metadata: true, .. } | Answer::Unreached { metadata: true } => {
            StoreError::Access { path: path.to_owned(), op, source: NO_CREDENTIALS.into() }
        }
        Answer::Status { status: 401 | 403, .. } => {
            StoreError::Access { path: path.to_owned(), op, source: error.into() }
        }
        Answer::Status { status: 404, code, .. } if op != "read" || is(code, &NO_BUCKET) => match op {
            "create" | "list" | "begin to write" => StoreError::NoBucket { path: root.to_owned() },
            _ if is(code, &NO_BUCKET) => StoreError::NoBucket { path: root.to_owned() },
            _ => StoreError::from_store(op, path, error),
        },
        Answer::Status { status: 400..500, .. } if op == "create" => not_done("the store declined", error),
        Answer::Unreached { .. }
            if answers.iter().all(|answer| matches!(answer, Answer::Unreached { .. })) =>
        {
            not_done("the store could not be reached; look at the endpoint, and at the network", error)
        }
        _ => StoreError::from_store(op, path, error),
    }
}

/// A call that failed before its first request: settings, or credentials that could not be read.
fn unsent(path: &str, error: Error) -> StoreError {
    match StoreError::from_store("reach", path, error) {
        StoreError::Io { path, op, source } => {
            StoreError::NotDone { path, op, reason: "no request was sent".to_owned(), source }
        }
        other => other,
    }
}

/// Whether a create that was answered so may have landed, or may still.
const fn may_have_landed(answer: &Answer) -> bool {
    match answer {
        Answer::Cut | Answer::Status { status: 500.. | 408, .. } => true,
        // An answer of success that was not understood.
        Answer::Status { status: 200..300, metadata: false, .. } => true,
        Answer::Status { .. } | Answer::Unreached { .. } => false,
    }
}

const fn is_metadata(answer: &Answer) -> bool {
    matches!(answer, Answer::Status { metadata: true, .. } | Answer::Unreached { metadata: true })
}

fn is(code: &Option<String>, known: &[&str]) -> bool {
    code.as_deref().is_some_and(|code| known.contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(status: u16) -> Answer {
        Answer::Status { status, code: None, metadata: false }
    }

    fn coded(status: u16, code: &str) -> Answer {
        Answer::Status { status, code: Some(code.to_owned()), metadata: false }
    }

    fn create(answers: &[Answer]) -> String {
        let error = Error::Generic { store: "S3", source: "some text".into() };
        let outcome = of_create("s3://b", "s3://b/x", error, answers);
        let (again, error) = match outcome {
            Create::Failed(error) => ("", error),
            Create::Conflict(error) => ("again, then ", error),
        };
        let name = match error {
            StoreError::AlreadyExists { .. } => "taken",
            StoreError::Io { .. } => "unknown",
            StoreError::Access { .. } => "no access",
            StoreError::NoBucket { .. } => "no bucket",
            StoreError::NotDone { .. } => "nothing landed",
            _ => "?",
        };
        assert_eq!(error.may_have_landed(), name == "unknown");
        format!("{again}{name}")
    }

    #[test]
    fn each_answer_to_a_create_means_one_thing() {
        let unreached = Answer::Unreached { metadata: false };
        for (answers, meaning) in [
            (vec![status(412)], "taken"),
            (vec![status(304)], "taken"),
            (vec![coded(409, "BlobAlreadyExists")], "taken"),
            (vec![coded(409, "ConditionalRequestConflict")], "again, then unknown"),
            (vec![status(409)], "again, then unknown"),
            (vec![status(403)], "no access"),
            (vec![status(401)], "no access"),
            (vec![status(404)], "no bucket"),
            (vec![status(400)], "nothing landed"),
            (vec![status(429), status(429)], "unknown"),
            (vec![unreached.clone(), unreached.clone()], "nothing landed"),
            (vec![unreached.clone(), status(412)], "taken"),
            (vec![status(500), status(412)], "taken"),
            (vec![status(503)], "unknown"),
            (vec![Answer::Cut], "unknown"),
            (vec![status(200)], "unknown"),
            (vec![status(500), status(403)], "unknown"),
            (vec![status(503), status(404)], "unknown"),
            (vec![Answer::Cut, status(400)], "unknown"),
            (vec![status(500), unreached], "unknown"),
            (vec![], "nothing landed"),
        ] {
            assert_eq!(create(&answers), meaning, "{answers:?}");
        }
    }

    #[test]
    fn a_machine_without_credentials_is_told_which_ones_to_set() {
        let error = Error::Generic { store: "S3", source: "…".into() };
        let unreached = [Answer::Unreached { metadata: true }];
        let error = of_call("read", "s3://b", "s3://b/x", error, &unreached);
        assert!(
            matches!(&error, StoreError::Access { source, .. } if source.to_string().contains("AWS_ACCESS_KEY_ID"))
        );
        assert_eq!(create(&unreached), "no access");
    }

    #[test]
    fn a_missing_bucket_is_no_missing_object() {
        let missing = || Error::NotFound { path: "x".into(), source: "…".into() };
        let read = |answer| of_call("read", "s3://b", "s3://b/x", missing(), &[answer]);
        assert!(matches!(read(coded(404, "NoSuchKey")), StoreError::NotFound { .. }));
        assert!(matches!(read(coded(404, "NoSuchBucket")), StoreError::NoBucket { .. }));
        let listed = of_call("list", "s3://b", "s3://b", missing(), &[status(404)]);
        assert!(matches!(listed, StoreError::NoBucket { .. }));
    }
}
