//! Following a job: its state as it changes, and the output of each attempt in turn.
//!
//! One task per attached client. It holds no state of the job; when the client goes away nothing
//! happens to the job.

use std::time::{Duration, Instant};

use fleet_core::id::{AllocationId, JobId};
use fleet_core::name::NodeName;
use fleet_core::{Event, Fsm, Rejection};
use fleet_proto::convert::rejection::to_status;
use fleet_proto::v1;
use fleet_proto::v1::attach_input::Input;
use fleet_proto::v1::attach_output::Output;
use fleet_proto::v1::open_tunnel::Purpose;
use fleet_proto::v1::tunnel_frame::Frame;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep_until;
use tonic::{Request, Status};

use super::{Context, writes};
use crate::audit::{Query, RecordOrder};
use crate::callers::Caller;
use crate::tunnels::Tunnel;

/// Pieces of output under way to the client.
const OUTPUT_IN_FLIGHT: usize = 64;

/// How long a broken stream is tried again, while the job runs and after its end.
const REOPEN_PATIENCE: Duration = Duration::from_secs(120);
const REOPEN_PATIENCE_ENDED: Duration = Duration::from_secs(15);
/// Between two tries.
const REOPEN_PAUSE: Duration = Duration::from_millis(250);

/// Delay before attach works out why a job waits: most jobs start sooner. The leader's own plan starts jobs without it.
const PLAN_FIRST: Duration = Duration::from_millis(250);
/// And again after this. A busy fleet changes many times a second, and a plan is work.
const PLAN_PAUSE: Duration = Duration::from_secs(1);

/// What the client sends: by gRPC, or from this controller's own page.
pub(super) type FromClient = BoxStream<'static, Result<v1::AttachInput, Status>>;

type Client = mpsc::Sender<Result<v1::AttachOutput, Status>>;

/// What is followed and how.
struct Follow {
    context: Context,
    job: JobId,
    open: v1::AttachOpen,
    client: Client,
}

/// The client went away, or the connection to it broke.
struct Gone;

impl Context {
    /// The first message says what to follow; the answers come out of the returned channel.
    pub(super) async fn attach(
        &self,
        caller: &Caller,
        mut input: FromClient,
    ) -> Result<mpsc::Receiver<Result<v1::AttachOutput, Status>>, Status> {
        let first = input.next().await.transpose()?.and_then(|message| message.input);
        let Some(Input::Open(open)) = first else {
            return Err(Status::invalid_argument("the first message must be `open`"));
        };
        let job = writes::job_id(&open.job)?;
        // Agents are connected to the leader, and a follower may not know the job yet.
        self.newest().await?;
        self.may_look_into(caller, &job, "attach")?;
        let (client, output) = mpsc::channel(OUTPUT_IN_FLIGHT);
        let follow = Follow { context: self.clone(), job, open, client };
        tokio::spawn(async move {
            let ended = tokio::select! {
                ended = follow.run(input) => ended,
                // Also before anything is sent, as while a node is asked that does not answer.
                () = follow.client.closed() => return,
                () = follow.context.deposed() => {
                    Err(Ok(Status::unavailable("this controller does not lead any more")))
                }
            };
            if let Err(Ok(status)) = ended {
                drop(follow.client.send(Err(status)).await);
            }
        });
        Ok(output)
    }

    /// What `attach` answers to a user who sends nothing but this: for this controller's own page.
    pub(crate) async fn job_output(
        &self,
        request: Request<v1::AttachOpen>,
    ) -> Result<mpsc::Receiver<Result<v1::AttachOutput, Status>>, Status> {
        let caller = self.callers.user(&request).await?;
        let open = Input::Open(request.into_inner());
        let input = tokio_stream::once(Ok(v1::AttachInput { input: Some(open) }));
        self.attach(&caller, Box::pin(input)).await
    }

    /// Output and shells are for the owner and for admins.
    pub(super) fn may_look_into(
        &self,
        caller: &Caller,
        job: &JobId,
        action: &str,
    ) -> Result<(), Status> {
        let owner = self.raft.read(|fsm| fsm.job(job).map(|j| j.owner.clone()));
        let not_found = fleet_core::Rejection::not_found("job", job);
        let owner = owner.ok_or_else(|| fleet_proto::convert::rejection::to_status(&not_found))?;
        if caller.admin || owner == caller.name {
            return Ok(());
        }
        self.refusals.note(&caller.actor.principal(), action, "denied");
        Err(Status::permission_denied(format!("{job} belongs to {owner}")))
    }
}

impl Follow {
    async fn send(&self, output: Output) -> Result<(), Gone> {
        let message = v1::AttachOutput { output: Some(output) };
        self.client.send(Ok(message)).await.map_err(|_| Gone)
    }

    /// Runs until the job has ended and its output is sent. The inner error is for the client.
    async fn run(&self, mut input: FromClient) -> Result<(), Result<Status, Gone>> {
        let mut applied = self.context.raft.applied();
        let mut shown: Option<v1::Job> = None;
        let mut streamed = 0;
        let mut look_at = Instant::now() + PLAN_FIRST;
        loop {
            applied.borrow_and_update();
            let mut job = self.context.job_view(&self.job).map_err(Ok)?;
            let waits = job.state == "queued";
            let is_due = Instant::now() >= look_at;
            match &shown {
                _ if !waits => {}
                _ if is_due => {
                    look_at = Instant::now() + PLAN_PAUSE;
                    job = self.context.planned_view(&self.job).map_err(Ok)?;
                }
                Some(shown) => keep_wait(&mut job, shown),
                // Most jobs start before there is anything to say of how they wait.
                None if self.open.follow => {
                    self.until_changed(&mut applied, Some(look_at)).await?;
                    continue;
                }
                None => {}
            }
            self.show(&job, &mut shown).await.map_err(Err)?;
            let (attempt, at) = self.attempt_to_stream(&job).await.map_err(Ok)?;
            if let Some((node, allocation)) = at.filter(|_| attempt > streamed) {
                streamed = attempt;
                self.stream_attempt(&node, &allocation, &mut input, &mut shown)
                    .await
                    .map_err(Err)?;
                continue;
            }
            if is_final(&job) || !self.open.follow {
                return Ok(());
            }
            // A plan may come out differently without a change of this job.
            self.until_changed(&mut applied, waits.then_some(look_at)).await?;
        }
    }

    /// Until something is applied, or until then.
    async fn until_changed(
        &self,
        applied: &mut watch::Receiver<u64>,
        then: Option<Instant>,
    ) -> Result<(), Result<Status, Gone>> {
        tokio::select! {
            changed = applied.changed() => {
                changed.map_err(|_| Ok(Status::unavailable("this controller is stopping")))
            }
            () = sleep_until(then.unwrap_or_else(Instant::now).into()), if then.is_some() => Ok(()),
            () = self.client.closed() => Err(Err(Gone)),
        }
    }

    /// Sends the job if something about it changed that a person would want to know.
    async fn show(&self, job: &v1::Job, shown: &mut Option<v1::Job>) -> Result<(), Gone> {
        if shown.as_ref().is_some_and(|old| !differs(old, job)) {
            return Ok(());
        }
        self.send(Output::Job(job.clone())).await?;
        *shown = Some(job.clone());
        Ok(())
    }

    /// The attempt whose output comes next, and where it is, once it can have any.
    async fn attempt_to_stream(
        &self,
        job: &v1::Job,
    ) -> Result<(u32, Option<(NodeName, AllocationId)>), Status> {
        let asked = self.open.attempt;
        if asked > job.attempt && (is_final(job) || !self.open.follow) {
            let problem = match job.attempt {
                0 => format!("{} has not begun yet", self.job),
                1 => format!("{} has had 1 attempt", self.job),
                n => format!("{} has had {n} attempts", self.job),
            };
            return Err(to_status(&Rejection::field("attempt", problem)));
        }
        let attempt = if asked > 0 { asked } else { job.attempt };
        let id = AllocationId::of_attempt(&self.job, attempt);
        let begun = match attempt {
            0 => false,
            newest if newest == job.attempt => job.state != "starting",
            earlier => earlier < job.attempt,
        };
        if !begun {
            return Ok((attempt, None));
        }
        let node = if attempt == job.attempt {
            let place = |fsm: &Fsm| fsm.job(&self.job)?.place().map(|p| p.node.clone());
            self.context.raft.read(place)
        } else {
            self.node_of(&id).await?
        };
        Ok((attempt, node.map(|node| (node, id))))
    }

    /// Where an earlier attempt was, by the audit log.
    async fn node_of(&self, id: &AllocationId) -> Result<Option<NodeName>, Status> {
        let object = Some(id.to_string());
        let query = Query { object, order: RecordOrder::OldestFirst, ..Query::default() };
        let page = self.context.audit().query(query).await;
        let page = page.map_err(|e| Status::internal(format!("read the audit log: {e}")))?;
        Ok(page.records.iter().flat_map(|record| &record.body.events).find_map(
            |event| match event {
                Event::JobPlaced { allocation, node, .. } if allocation == id => Some(node.clone()),
                _ => None,
            },
        ))
    }

    /// Sends one attempt's output. A broken stream is opened again where it broke: an agent's restart must not
    /// cut off the watching user. If the node cannot be reached for long, the user reads what is missing,
    /// and the stream continues: the job keeps running unwatched.
    async fn stream_attempt(
        &self,
        node: &NodeName,
        allocation: &AllocationId,
        input: &mut FromClient,
        shown: &mut Option<v1::Job>,
    ) -> Result<(), Gone> {
        let mut sent = Sent::default();
        let mut last_heard = Instant::now();
        loop {
            let again = sent.again(self.open.from_beginning);
            let purpose = Purpose::Output(v1::TunnelOutput {
                from_beginning: self.open.from_beginning,
                // What came before was shown; without the beginning there is nothing to skip from.
                tail_lines: if again { 0 } else { self.open.tail_lines },
                follow: self.open.follow,
                interactive: self.open.interactive,
            });
            let problem = match self.context.tunnels.open(node, Some(allocation), purpose).await {
                Ok(tunnel) => match self.pump(tunnel, input, shown, &mut sent).await? {
                    Pumped::All => return Ok(()),
                    Pumped::Broken => {
                        last_heard = Instant::now();
                        "the stream broke".to_owned()
                    }
                },
                Err(status) => status.message().to_owned(),
            };
            let job = self.context.job_view(&self.job).ok();
            let patience = match (&job, self.open.follow) {
                (Some(job), true) if !is_final(job) => REOPEN_PATIENCE,
                (_, true) => REOPEN_PATIENCE_ENDED,
                (_, false) => Duration::ZERO,
            };
            if last_heard.elapsed() >= patience {
                let why = format!("cannot show the output of {allocation}: {problem}");
                let missing = v1::MissingOutput { why, unreachable: true };
                return self.send(Output::Missing(missing)).await;
            }
            if let Some(job) = job.filter(|job| !is_final(job)) {
                self.show(&job, shown).await?;
            }
            tokio::select! {
                () = tokio::time::sleep(REOPEN_PAUSE) => {}
                () = self.client.closed() => return Err(Gone),
            }
        }
    }

    async fn pump(
        &self,
        mut tunnel: Tunnel,
        input: &mut FromClient,
        shown: &mut Option<v1::Job>,
        sent: &mut Sent,
    ) -> Result<Pumped, Gone> {
        let mut listening = self.open.interactive;
        let mut applied = self.context.raft.applied();
        loop {
            tokio::select! {
                changed = applied.changed(), if self.open.follow => {
                    if changed.is_err() {
                        return Ok(Pumped::All);
                    }
                    // The user sees the job's end after its output, not before.
                    if let Ok(job) = self.context.job_view(&self.job)
                        && !is_final(&job)
                    {
                        self.show(&job, shown).await?;
                    }
                }
                frame = tunnel.from_agent.message() => {
                    let Ok(Some(v1::TunnelFrame { frame: Some(frame) })) = frame else {
                        return Ok(Pumped::Broken);
                    };
                    match frame {
                        Frame::Stdout(bytes) => if let Some(new) = sent.stdout.new_part(bytes) {
                            self.send(Output::Stdout(new)).await?;
                        },
                        Frame::Stderr(bytes) => if let Some(new) = sent.stderr.new_part(bytes) {
                            self.send(Output::Stderr(new)).await?;
                        },
                        Frame::Error(why) => {
                            let missing = v1::MissingOutput { why, unreachable: false };
                            self.send(Output::Missing(missing)).await?;
                        }
                        Frame::OutputEnded(_) => return Ok(Pumped::All),
                        Frame::TunnelId(_)
                        | Frame::Stdin(_)
                        | Frame::StdinClosed(_)
                        | Frame::Resize(_)
                        | Frame::ExitCode(_)
                        | Frame::Images(_)
                        | Frame::GpuMinutes(_) => {}
                    }
                }
                message = input.next(), if listening => {
                    let frame = match message {
                        Some(Ok(v1::AttachInput { input: Some(Input::Stdin(bytes)) })) => Frame::Stdin(bytes),
                        Some(Ok(v1::AttachInput { input: Some(Input::Resize(size)) })) => Frame::Resize(size),
                        Some(Ok(v1::AttachInput { input: Some(Input::StdinClosed(_)) })) => Frame::StdinClosed(true),
                        Some(Ok(v1::AttachInput { input: Some(Input::Open(_)) | None })) => continue,
                        // The client's side is closed; what the job still says is sent on.
                        None | Some(Err(_)) => { listening = false; continue }
                    };
                    let frame = v1::TunnelFrame { frame: Some(frame) };
                    if tunnel.to_agent.send(Ok(frame)).await.is_err() {
                        listening = false;
                    }
                }
                () = self.client.closed() => return Err(Gone),
            }
        }
    }
}

/// How a stream ended.
enum Pumped {
    All,
    Broken,
}

/// How much of an attempt's output the client has.
#[derive(Default)]
struct Sent {
    opened: bool,
    stdout: Part,
    stderr: Part,
}

impl Sent {
    /// Before a stream is opened, which may begin at the beginning: then what was sent is skipped. Says
    /// whether there was one before.
    fn again(&mut self, from_beginning: bool) -> bool {
        for part in [&mut self.stdout, &mut self.stderr] {
            part.skip = if from_beginning { part.sent } else { 0 };
        }
        std::mem::replace(&mut self.opened, true)
    }
}

/// The bytes of one of the two.
#[derive(Default)]
struct Part {
    sent: usize,
    skip: usize,
}

impl Part {
    /// What of these bytes the client does not have yet.
    fn new_part(&mut self, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
        let known = self.skip.min(bytes.len());
        self.skip -= known;
        bytes.drain(..known);
        self.sent += bytes.len();
        (!bytes.is_empty()).then_some(bytes)
    }
}

fn is_final(job: &v1::Job) -> bool {
    matches!(job.state.as_str(), "completed" | "failed" | "cancelled" | "timed_out")
}

/// Where and why it waits is what was planned last, unless it did not wait for a place then or does not now.
fn keep_wait(job: &mut v1::Job, shown: &v1::Job) {
    let waited = shown.state == "queued" && shown.place > 0 && shown.attempt == job.attempt;
    if !waited || !job.question.is_empty() {
        return;
    }
    job.place = shown.place;
    job.earliest_start_unix_ms = shown.earliest_start_unix_ms;
    job.reason.clone_from(&shown.reason);
}

/// Whether the client should hear of it.
fn differs(old: &v1::Job, new: &v1::Job) -> bool {
    let minute = |job: &v1::Job| job.earliest_start_unix_ms / 60_000;
    minute(old) != minute(new)
        || old.time_limit_at_unix_ms != new.time_limit_at_unix_ms
        || old.state != new.state
        || old.reason != new.reason
        || old.attempt != new.attempt
        || old.place != new.place
        || old.deferral.is_some() != new.deferral.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_is_queued_again_does_not_wait_for_what_it_was_stopped_for() {
        let job = |state: &str, place, reason: &str| v1::Job {
            state: state.to_owned(),
            place,
            reason: reason.to_owned(),
            attempt: 1,
            ..v1::Job::default()
        };
        let kept = |shown: v1::Job| {
            let mut queued = job("queued", 0, "waiting for the scheduler");
            keep_wait(&mut queued, &shown);
            (queued.place, queued.reason)
        };
        assert_eq!(kept(job("queued", 3, "bea has it")), (3, "bea has it".to_owned()));
        let unplanned = (0, "waiting for the scheduler".to_owned());
        assert_eq!(kept(job("stopping", 0, "drained")), unplanned);
        let before = v1::Job { attempt: 0, ..job("queued", 3, "bea has it") };
        assert_eq!(kept(before), unplanned);
    }

    #[test]
    fn what_was_sent_before_the_stream_broke_is_not_sent_again() {
        let mut sent = Sent::default();
        assert!(!sent.again(true));
        assert_eq!(sent.stdout.new_part(b"abc".to_vec()), Some(b"abc".to_vec()));
        assert!(sent.again(true));
        assert_eq!(sent.stdout.new_part(b"ab".to_vec()), None);
        assert_eq!(sent.stdout.new_part(b"cd".to_vec()), Some(b"d".to_vec()));
        assert_eq!(sent.stderr.new_part(b"e".to_vec()), Some(b"e".to_vec()));
        assert!(sent.again(true));
        assert_eq!(sent.stdout.new_part(b"abcde".to_vec()), Some(b"e".to_vec()));
    }
}
