//! The page of one GPU: how it is now, and who had it.

use askama::Template;
use axum::extract::{Path, State};
use axum::response::Response;
use fleet_core::Rejection;
use fleet_core::time::Millis;
use fleet_proto::convert::rejection::to_status;
use fleet_proto::json::gpu::Gpu as GpuJson;
use fleet_proto::json::gpu_stay::GpuStay;
use fleet_proto::v1;

use super::Shared;
use super::ask::ask;
use super::page::{Page, link_to, shown};
use super::session::LoggedIn;

/// How far the page looks back.
const BACK: Millis = Millis::days(30);

#[derive(Template)]
#[template(path = "gpu.html")]
struct GpuPage {
    page: Page,
    name: String,
    model: Option<String>,
    state: String,
    reason: Option<String>,
    uuid: String,
    memory_bytes: u64,
    days: u64,
    /// The newest first.
    stays: Vec<Stay>,
    /// What was before is not shown.
    complete_from: Option<String>,
}

struct Stay {
    owner: Option<String>,
    holder: String,
    link: Option<String>,
    from: Option<String>,
    until: Option<String>,
    end: Option<String>,
}

impl From<GpuStay> for Stay {
    fn from(stay: GpuStay) -> Self {
        Self {
            owner: stay.owner,
            link: link_to(&stay.holder),
            holder: stay.holder,
            from: stay.from.map(|at| at.to_string()),
            until: stay.until.map(|at| at.to_string()),
            end: stay.end,
        }
    }
}

pub(super) async fn gpu(
    State(web): State<Shared>,
    Path((node, index)): Path<(String, u32)>,
    user: LoggedIn,
) -> Response {
    let session = &user.session;
    let refused = |status| web.problem(Some(&user.caller), &status);
    let request = v1::ListGpusRequest { node: node.clone(), ..v1::ListGpusRequest::default() };
    let gpus = match ask!(web, session, request, list_gpus) {
        Ok(gpus) => gpus.items,
        Err(status) => return refused(status),
    };
    let Some(gpu) = gpus.into_iter().map(GpuJson::from).find(|gpu| gpu.index == index) else {
        return refused(to_status(&Rejection::not_found("gpu", format!("{node}:{index}"))));
    };
    let from_unix_ms = (web.context.clock.now() - BACK).0;
    let request =
        v1::GetGpuHistoryRequest { uuid: gpu.uuid.clone(), from_unix_ms, until_unix_ms: 0 };
    let history = match ask!(web, session, request, get_gpu_history) {
        Ok(history) => history,
        Err(status) => return refused(status),
    };
    let complete_from = history.complete_from_unix_ms.max(history.pruned_until_unix_ms);
    let reason = gpu.why();
    let stays = history.items.into_iter().rev().map(GpuStay::from).map(Stay::from);
    shown(&GpuPage {
        page: web.page("GPU", "", Some(&user.caller)),
        name: format!("{node}:{index}"),
        model: gpu.model,
        state: gpu.state.word().to_owned(),
        reason,
        uuid: gpu.uuid,
        memory_bytes: gpu.memory_bytes.unwrap_or(0),
        days: BACK.0 / Millis::days(1).0,
        stays: stays.collect(),
        complete_from: fleet_proto::json::values::time(complete_from).map(|at| at.to_string()),
    })
}
