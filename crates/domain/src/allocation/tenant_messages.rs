//! Error messages for tenants. They reveal nothing about hosts, other tenants and serial numbers, but say what tenants can change
//! themselves.

use crate::task::TaskRecord;

/// Why a task failed, for the tenant.
pub(super) fn of_task(task: &TaskRecord) -> String {
    if let Some(sentence) = of_code(&task.code) {
        return sentence.to_owned();
    }
    "the host could not do it; the operators can see why".to_owned()
}

/// Messages for errors that the tenant can fix.
fn of_code(code: &str) -> Option<&'static str> {
    Some(match code {
        "image_digest_mismatch" => "the image at its URL does not have the digest that was given; make the image anew",
        "image_unreachable" | "image_http_status" | "image_redirect_refused" | "image_stalled" | "image_missing" => {
            "the image could not be fetched from its URL; check that hosts can reach it"
        }
        "image_too_large" => "the image is larger than the drive; choose a smaller one",
        "image_mislabeled" | "image_damaged" | "image_encrypted" | "image_refers_to_file" | "image_unsupported" => {
            "the image is not in the format that it is registered with; hosts take whole, plain qcow2 or raw images"
        }
        "guest_not_ready" | "readiness_timeout" => {
            "the machine did not come up in time; look at its console and at what its image does at the first boot"
        }
        "queue_time_over" | "no_word" | "node_gone" | "journal_lost" => "the host did not answer in time",
        "cancelled_before_dispatch" | "cancelled_unaccepted" | "cancelled" => "it was cancelled",
        _ => return None,
    })
}
