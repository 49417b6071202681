//! What requests of the XML interface mean.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use chrono::{DateTime, SecondsFormat, Utc};

use super::http::{Request, Response, escaped};
use super::objects::{Object, Objects};

/// Names in one answer to a listing, at most.
const PAGE: usize = 1_000;

pub(super) fn answer(request: &Request, objects: &mut Objects) -> Response {
    let (bucket, name) = request.path.split_once('/').unwrap_or((request.path.as_str(), ""));
    if bucket != objects.bucket {
        return Response::failure(404, "NoSuchBucket", "The specified bucket does not exist.");
    }
    let upload = request.query.get("uploadId");
    match (request.method.as_str(), upload) {
        ("GET", None) if name.is_empty() => list(request, objects),
        ("GET" | "HEAD", None) => get(request, name, objects),
        ("PUT", None) => put(request, name, objects),
        ("DELETE", None) => match objects.objects.remove(name) {
            Some(_) => Response::new(204),
            None => missing(),
        },
        ("POST", None) if request.query.contains_key("uploads") => {
            let id = objects.begin(name);
            Response::xml(&format!(
                "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
            ))
        }
        ("PUT", Some(id)) => part(request, id, objects),
        ("POST", Some(id)) => complete(request, id, objects),
        ("DELETE", Some(id)) => match objects.abort(id) {
            true => Response::new(204),
            false => no_upload(),
        },
        _ => Response::failure(405, "MethodNotAllowed", "The specified method is not allowed."),
    }
}

fn missing() -> Response {
    Response::failure(404, "NoSuchKey", "The specified key does not exist.")
}

fn no_upload() -> Response {
    Response::failure(404, "NoSuchUpload", "The requested upload was not found.")
}

fn described(response: Response, object: &Object) -> Response {
    let modified = DateTime::<Utc>::from(object.modified).format("%a, %d %b %Y %H:%M:%S GMT").to_string();
    let response =
        response.with("ETag", object.etag()).with("x-goog-generation", object.generation.to_string());
    response.with("Last-Modified", modified)
}

fn put(request: &Request, name: &str, objects: &mut Objects) -> Response {
    let expected = request.headers.get("x-goog-if-generation-match").and_then(|value| value.parse().ok());
    let bytes = match request.headers.get("x-goog-copy-source") {
        None => request.body.clone(),
        Some(_) => match source(request).and_then(|from| objects.objects.get(&from)) {
            Some(object) => object.bytes.to_vec(),
            None => return missing(),
        },
    };
    match objects.put(name, bytes, expected) {
        Some(object) => described(Response::new(200), &object),
        None => Response::failure(
            412,
            "PreconditionFailed",
            "At least one of the pre-conditions you specified did not hold.",
        ),
    }
}

/// The name that a copy is made of.
fn source(request: &Request) -> Option<String> {
    let from = super::http::decoded(request.headers.get("x-goog-copy-source")?.trim_start_matches('/'));
    from.split_once('/').map(|(_, name)| name.to_owned())
}

fn get(request: &Request, name: &str, objects: &Objects) -> Response {
    let Some(object) = objects.objects.get(name) else { return missing() };
    let size = object.bytes.len();
    let Some(range) = request.headers.get("range").and_then(|range| range.strip_prefix("bytes=")) else {
        return described(
            Response { status: 200, body: object.bytes.to_vec(), ..Response::default() },
            object,
        );
    };
    let (first, last) = range.split_once('-').unwrap_or((range, ""));
    let first = first.parse::<usize>().unwrap_or(usize::MAX);
    let last = last.parse::<usize>().unwrap_or(usize::MAX).min(size.saturating_sub(1));
    match object.bytes.get(first..last.saturating_add(1)) {
        Some(bytes) if first < size => {
            let response = Response { status: 206, body: bytes.to_vec(), ..Response::default() };
            described(response, object).with("Content-Range", format!("bytes {first}-{last}/{size}"))
        }
        _ => Response::failure(416, "InvalidRange", "The requested range cannot be satisfied."),
    }
}

fn part(request: &Request, id: &str, objects: &mut Objects) -> Response {
    let number = request.query.get("partNumber").and_then(|number| number.parse().ok()).unwrap_or(0);
    match objects.part(id, number, request.body.clone()) {
        Some(etag) => Response::new(200).with("ETag", etag),
        None => no_upload(),
    }
}

fn complete(request: &Request, id: &str, objects: &mut Objects) -> Response {
    let text = String::from_utf8_lossy(&request.body);
    let count = u32::try_from(text.matches("<PartNumber>").count()).unwrap_or(0);
    match objects.complete(id, count) {
        Some(object) => {
            let etag = escaped(&object.etag());
            let text =
                format!("<CompleteMultipartUploadResult><ETag>{etag}</ETag></CompleteMultipartUploadResult>");
            described(Response::xml(&text), &object)
        }
        None => no_upload(),
    }
}

fn list(request: &Request, objects: &Objects) -> Response {
    let asked = |key: &str| request.query.get(key).map(String::as_str);
    let (prefix, delimiter) =
        (asked("prefix").unwrap_or(""), asked("delimiter").filter(|text| !text.is_empty()));
    let after = asked("continuation-token").or(asked("start-after"));
    let page = asked("max-keys").and_then(|keys| keys.parse().ok()).unwrap_or(PAGE).min(PAGE);
    let begin = after.map_or(Bound::Included(prefix), Bound::Excluded);
    let below = objects.objects.range::<str, _>((begin, Bound::Unbounded));
    let (mut found, mut folders, mut next) =
        (Vec::<(&String, Arc<Vec<u8>>, &Object)>::new(), BTreeSet::new(), None);
    for (name, object) in below.filter(|(name, _)| name.starts_with(prefix)) {
        let rest = name.get(prefix.len()..).unwrap_or_default();
        let folder = delimiter
            .and_then(|mark| rest.split_once(mark).map(|(first, _)| format!("{prefix}{first}{mark}")));
        // A page begins behind the last name of the one before, which may lie within a folder that was told then.
        if folder.as_ref().is_some_and(|folder| after.is_some_and(|after| after.starts_with(folder.as_str())))
        {
            continue;
        }
        let known = folder.as_ref().is_some_and(|folder| folders.contains(folder));
        if !known && found.len() + folders.len() >= page {
            next = Some(());
            break;
        }
        match folder {
            Some(folder) => drop(folders.insert(folder)),
            None => found.push((name, Arc::clone(&object.bytes), object)),
        }
    }
    let last = found.last().map(|(name, ..)| name.to_string()).max(folders.last().cloned());
    let mut text = String::new();
    for (name, bytes, object) in &found {
        let modified = DateTime::<Utc>::from(object.modified).to_rfc3339_opts(SecondsFormat::Millis, true);
        text += &format!(
            "<Contents><Key>{}</Key><Size>{}</Size><LastModified>{modified}</LastModified><ETag>{}</ETag></Contents>",
            escaped(name),
            bytes.len(),
            escaped(&object.etag())
        );
    }
    for folder in &folders {
        text += &format!("<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>", escaped(folder));
    }
    if let Some(last) = next.and(last) {
        text += &format!("<NextContinuationToken>{}</NextContinuationToken>", escaped(&last));
    }
    Response::xml(&format!("<ListBucketResult>{text}</ListBucketResult>"))
}
