//! What is odd about one archive, and can be known without reading a payload: names that are not torch's, records that
//! nothing names or that are too long, missing checksums, storages that several views share.

use std::collections::HashSet;

use super::file::Reading;
use crate::{Finding, FindingCode, Severity, pickle::Tree, torch::CrcState};

impl Reading<'_> {
    /// What only this format knows, and can be known without reading a payload.
    pub(super) fn look_around(&mut self, tree: &Tree) {
        for global in tree.opaque_globals() {
            let text = format!(
                "the pickle names {}.{}, which is none of torch's own: the value is carried along unread",
                global.module, global.name
            );
            let hint = "torch would import it when it opens the file with weights_only=False";
            self.note(Severity::Warning, FindingCode::UnknownGlobal, text, Some(hint));
        }
        let named = tree.persistent_ids().filter_map(|id| id.as_sequence()?.nth(2)?.as_str());
        self.records(&named.collect());
        self.shared_storages();
        if self.archive.crc_state() == CrcState::Disabled {
            let hint = "written with set_crc32_options(False); `ckpt seal` gives the file hashes from now on";
            let text = "its records have no checksums: their bytes can't be verified".to_owned();
            self.note(Severity::Note, FindingCode::ChecksumsOff, text, Some(hint));
        }
        if self.archive.record("byteorder").is_none() {
            let text = "it does not say its byte order, as before torch 2.1: little-endian is assumed";
            self.note(Severity::Note, FindingCode::Other, text.to_owned(), None);
        }
    }

    fn records(&mut self, named: &HashSet<&str>) {
        const KNOWN: [&str; 6] = [
            "data.pkl",
            ".format_version",
            ".storage_alignment",
            "byteorder",
            "version",
            ".data/serialization_id",
        ];
        for record in self.archive.records() {
            let storage = record.name.strip_prefix("data/");
            let stated = storage.and_then(|key| self.views.get(key)).map(|(bytes, _)| *bytes);
            match (storage, stated) {
                (Some(_), Some(bytes)) if record.len > bytes => {
                    let text = format!(
                        "record {} has {} bytes, its storage only {bytes}: the rest belongs to no tensor",
                        record.name, record.len
                    );
                    self.note(Severity::Warning, FindingCode::LengthMismatch, text, None);
                }
                (Some(key), None) if !named.contains(key) => {
                    let text = format!("record {} ({} bytes) is named by nothing", record.name, record.len);
                    self.note(Severity::Warning, FindingCode::OrphanBytes, text, None);
                }
                (None, _) if !KNOWN.contains(&record.name.as_str()) => {
                    let text = format!("record {} is none that torch writes", record.name);
                    self.note(Severity::Note, FindingCode::Other, text, None);
                }
                _ => {}
            }
        }
    }

    fn shared_storages(&mut self) {
        let (mut views, mut storages) = (0_usize, 0_usize);
        for (_, of_one) in self.views.values().filter(|(_, of_one)| of_one.len() > 1) {
            views = views.saturating_add(of_one.len());
            storages = storages.saturating_add(1);
        }
        if storages > 0 {
            let text = format!(
                "{views} different views share {storages} storages; written elsewhere, each is a tensor of its own"
            );
            self.note(Severity::Note, FindingCode::Other, text, None);
        }
    }

    fn note(&mut self, severity: Severity, code: FindingCode, text: String, hint: Option<&str>) {
        let finding = Finding::new(severity, code, text).file(self.name);
        self.findings.push(match hint {
            Some(hint) => finding.hint(hint),
            None => finding,
        });
    }
}
