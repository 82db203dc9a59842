//! A small client of the API over the controller's Unix socket: what a program that submits much would be.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use fleet_proto::{
    transport::unix,
    v1::{
        CreateReservationRequest, GetStatusRequest, GpuWish, Job, JobSpec, ListJobsRequest,
        ListNodesRequest, ReleaseReservationRequest, RequestMeta, Reservation,
        SetJobDefaultsRequest, Status, SubmitJobRequest, fleet_client::FleetClient,
    },
};
use fleet_tests::cluster::Cluster;
use tonic::{Request, transport::Channel};

/// Longest single call.
const CALL_MAX: Duration = Duration::from_secs(30);
/// A list of all jobs.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// One connection.
#[derive(Debug, Clone)]
pub(crate) struct Api(FleetClient<Channel>);

/// The controller's socket, from the configuration that `fleet dev` wrote for its users.
pub(crate) fn socket(cluster: &Cluster) -> Result<PathBuf> {
    let path = cluster.dev_file()?.config;
    let text =
        std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let config: toml::Table = text.parse()?;
    let socket = config.get("socket").and_then(toml::Value::as_str);
    Ok(PathBuf::from(socket.with_context(|| format!("{} names no socket", path.display()))?))
}

impl Api {
    /// A connection of its own; connects at the first call.
    pub(crate) fn new(socket: &Path) -> Self {
        Self(FleetClient::new(unix::channel(socket)).max_decoding_message_size(ANSWER_BYTES_MAX))
    }

    pub(crate) async fn status(&mut self) -> Result<Status> {
        Ok(self.0.get_status(request(GetStatusRequest {})).await?.into_inner())
    }

    /// What a job must ask for so that no more than `AT_A_TIME` fit: a share of what the node claims to have.
    pub(crate) async fn cpu_share(&mut self) -> Result<u64> {
        let most = SetJobDefaultsRequest {
            meta: meta(),
            stop_after_ms: None,
            without_gpus_percent: Some(crate::WITHOUT_GPUS_PERCENT as u32),
            places_kept: None,
        };
        self.0.set_job_defaults(request(most)).await?;
        let nodes = self.0.list_nodes(request(ListNodesRequest::default())).await?.into_inner();
        let node = nodes.items.first().context("there is no node")?;
        Ok(node.cpu_millis * crate::WITHOUT_GPUS_PERCENT / 100 / crate::AT_A_TIME)
    }

    /// `true` on the node's own files, with so many thousandths of a core and no GPU.
    pub(crate) async fn submit_true(&mut self, cpu_millis: u64) -> Result<String> {
        let spec = JobSpec {
            name: "true".to_owned(),
            image: "host".to_owned(),
            argv: vec!["true".to_owned()],
            workdir: "/".to_owned(),
            cpu_millis,
            memory_bytes: crate::bundle::MEMORY_BYTES,
            gpus: Some(GpuWish::default()),
            ..Default::default()
        };
        let message = SubmitJobRequest {
            meta: meta(),
            spec: Some(spec),
            owner: String::new(),
            new_users: false,
        };
        Ok(self.0.submit_job(request(message)).await?.into_inner().id)
    }

    /// All jobs, ended ones too.
    pub(crate) async fn jobs(&mut self) -> Result<Vec<Job>> {
        let message = ListJobsRequest { all: true, ..Default::default() };
        Ok(self.0.list_jobs(request(message)).await?.into_inner().items)
    }

    /// One GPU from `starts_at_unix_ms`.
    pub(crate) async fn reserve(
        &mut self,
        starts_at_unix_ms: u64,
        length: Duration,
    ) -> Result<Reservation> {
        let message = one_gpu(starts_at_unix_ms, length);
        Ok(self.0.create_reservation(request(message)).await?.into_inner())
    }

    pub(crate) async fn release(&mut self, id: String) -> Result<Reservation> {
        let message = ReleaseReservationRequest { meta: meta(), id };
        Ok(self.0.release_reservation(request(message)).await?.into_inner())
    }
}

/// A wish for one GPU from `starts_at_unix_ms`.
pub(crate) fn one_gpu(starts_at_unix_ms: u64, length: Duration) -> CreateReservationRequest {
    CreateReservationRequest {
        meta: meta(),
        gpus: Some(GpuWish { count: 1, ..Default::default() }),
        starts_at_unix_ms,
        length_ms: length.as_millis() as u64,
        ..Default::default()
    }
}

fn request<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(CALL_MAX);
    request
}

pub(crate) fn now_unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

pub(crate) fn meta() -> Option<RequestMeta> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let request_id = format!("bench-{}-{number}", std::process::id());
    Some(RequestMeta { request_id, made_at_unix_ms: now_unix_ms() })
}
