//! Everything that must be true before the first process of an attempt: the epoch on the disk, the user
//! known, the GPUs free, the image there, the checkpoint directory usable, the bundle written.
//!
//! Called by the attempt's own task. Each failure says whose fault it is. Nothing here runs anything of
//! the job's.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fleet_core::allocation::AttemptEnd;
use fleet_core::checkpoint::Resumed;
use fleet_core::health::begins_nothing;
use fleet_core::image::ImageUsed;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use super::AttemptParts;
use super::order::{self, Leased};
use crate::attempts::{AllocationDir, Record};
use crate::chain::chain;
use crate::checkpoint::resume::{OwnDir, ResumeAnswer, ResumeRequest};
use crate::checkpoint::{self, ResumeCheck, ResumedFrom};
use crate::runtime::{Image, PrepareError, Prepared, prepare};
use fleet_image::{ImageError, ImageName, ImageRef};
use fleet_kernel::filter::NvidiaMajors;
use fleet_node::epochs::{Claim, ClaimError};
use fleet_user::op::{CheckpointOp, Op, Reply};
use fleet_user::{AsUserError, User, UserError};

/// How long the checkpoint directory may take to be listed before the job starts.
const LISTING_MAX: Duration = Duration::from_secs(30);
/// Where the kernel says which driver has which number.
const PROC_DEVICES: &str = "/proc/devices";

/// Why an attempt did not begin.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The order is out of date: it is not carried out and not answered.
    Stale(ClaimError),
    /// It ends before it began.
    End(AttemptEnd),
    /// So it does, since its registry does not answer for now.
    NoImage(AttemptEnd),
}

impl From<AttemptEnd> for Refusal {
    fn from(end: AttemptEnd) -> Self {
        Refusal::End(end)
    }
}

fn node_fault(error: &dyn std::error::Error) -> AttemptEnd {
    AttemptEnd::NodeFault { message: chain(error) }
}

fn user_fault(error: &dyn std::error::Error) -> AttemptEnd {
    AttemptEnd::CannotStart { message: chain(error) }
}

/// What an attempt is begun with.
#[derive(Debug)]
pub struct Begin {
    pub parts: Arc<AttemptParts>,
    pub record: Arc<Record>,
    pub dir: AllocationDir,
    /// The order's image.
    pub image: ImageName,
    /// How far its preparation is, where the job's own words will be.
    pub says: watch::Sender<String>,
}

/// What is there when an attempt may start.
#[derive(Debug)]
pub(super) struct Ready {
    pub observer: Option<checkpoint::Handle>,
    /// What it resumes from, where its order named several, with paths as the job sees them.
    pub resumed: Option<Resumed>,
}

impl Begin {
    pub fn new(
        parts: Arc<AttemptParts>,
        record: Record,
        dir: AllocationDir,
        says: watch::Sender<String>,
    ) -> Self {
        let image = ImageName::read(&record.order.spec.image);
        Self { parts, record: Arc::new(record), dir, image, says }
    }

    /// Makes everything ready. When this returns well the epoch is durable and only the shim is missing.
    pub(super) async fn prepare(&self) -> Result<Ready, Refusal> {
        // The disk is slow and the rest does not depend on it; nothing starts before both are done.
        let claim = self.parts.epochs.claim(self.claim());
        let (claimed, made) = tokio::join!(claim, self.make_ready());
        claimed.map_err(|error| match error.is_stale() {
            true => Refusal::Stale(error),
            false => node_fault(&error).into(),
        })?;
        made
    }

    fn claim(&self) -> Claim {
        let Record { id, epoch, lease, order, .. } = &*self.record;
        let (allocation, lease) = (id.clone(), lease.clone());
        Claim { allocation, epoch: *epoch, lease, gpus: order.gpus.clone() }
    }

    async fn make_ready(&self) -> Result<Ready, Refusal> {
        self.room()?;
        // Before the permit: a registry, dockerd or the user's file server may take hours, and most others need nothing of
        // the kind.
        let fetched = self.fetch().await?;
        let permit = self.parts.starts.0.acquire().await;
        let _permit = permit.map_err(|error| node_fault(&error))?;
        let user = self.user().await?;
        let leased = self.gpus(&user).await?;
        self.parts.gpus.gate.admits(&self.record.order.owner, &self.record.order.gpus).await;
        let (observer, resumed) = self.checkpoints(&user).await?;
        let image = self.image(fetched).await?;
        self.bundle(user, leased, image, resumed.as_ref()).await?;
        Ok(Ready { observer, resumed })
    }

    /// Nothing is begun where it could not be ended, or would break off half-way.
    fn room(&self) -> Result<(), AttemptEnd> {
        let conditions = self.parts.health.conditions();
        let conditions = conditions.borrow();
        let lacking = conditions.iter().find(|condition| begins_nothing(condition));
        match lacking {
            Some(condition) => Err(AttemptEnd::NodeFault { message: condition.reason.clone() }),
            None => Ok(()),
        }
    }

    /// The owner, as this node knows them.
    pub(super) async fn user(&self) -> Result<User, AttemptEnd> {
        let order = &self.record.order;
        let found =
            self.parts.owners.users.resolve(order.owner.as_str(), order.spec.expected_uid).await;
        found.map_err(|error| match &error {
            // Others may know them: some directories answer so while they are ill.
            UserError::Unknown { .. }
            | UserError::UidMismatch { .. }
            | UserError::TimedOut { .. }
            | UserError::TooManyStuck { .. }
            | UserError::Service { .. } => node_fault(&error),
            UserError::BadName { .. } | UserError::SystemUser { .. } => user_fault(&error),
        })
    }

    /// The GPUs' device nodes, after looking that nobody else uses them.
    async fn gpus(&self, user: &User) -> Result<Leased, AttemptEnd> {
        if self.record.order.gpus.is_empty() {
            return Ok(Leased::default());
        }
        let fault = |message: String| AttemptEnd::NodeFault { message };
        let snapshot =
            self.parts.gpus.driver.sample_now().await.map_err(|error| node_fault(&error))?;
        let (record, observers) = (Arc::clone(&self.record), self.parts.gpus.observers.clone());
        let allowed = self.reserved_for(user).await;
        let look = move || {
            let leased = order::gpus(&record, &snapshot)?;
            for uuid in &record.order.gpus {
                let foreign = observers.now().foreign(&snapshot, uuid, &[], &allowed);
                if let Some(one) = foreign.first() {
                    return Err(format!("{uuid} is in use by somebody else: {one}"));
                }
            }
            Ok(leased)
        };
        spawn_blocking(look).await.map_err(|error| node_fault(&error))?.map_err(fault)
    }

    /// The users whose own programs may share the GPUs: within a reservation the lease is theirs. A user that this node
    /// does not know has no program here.
    async fn reserved_for(&self, user: &User) -> Vec<u32> {
        let mut uids = Vec::new();
        for name in &self.record.reserved_for {
            if *name == self.record.order.owner {
                uids.push(user.uid);
            } else if let Ok(other) = self.parts.owners.users.resolve(name.as_str(), None).await {
                uids.push(other.uid);
            }
        }
        uids
    }

    /// The checkpoint directory: there, the right one, watched.
    async fn checkpoints(
        &self,
        user: &User,
    ) -> Result<(Option<checkpoint::Handle>, Option<Resumed>), AttemptEnd> {
        let order = &self.record.order;
        let Some(plan) = &order.spec.checkpoint else {
            // A job that saves nothing may still begin from somebody's file.
            return Ok((None, self.resumed(user, Path::new("/")).await?.0));
        };
        let dir = order::on_node(&order.spec, Path::new(plan.base()));
        let job = order.job.as_str();
        let (mut resumed, mut from) = (None, None);
        match (&order.resume, &order.resume_from) {
            (Some(resume), _) if resume.path.is_none() => {
                let as_user = &self.parts.owners.as_user;
                let check =
                    checkpoint::verify_marker(as_user, user, &dir, job, &order.marker).await;
                let no_matter_where = resume.scratch || resume.candidates.is_empty();
                if check != ResumeCheck::Readable && no_matter_where {
                    // Nothing was ever saved, or nothing of it is wanted, so any disk will do.
                    self.mark(user, &dir).await?;
                    if plan.folder_of(order.attempt).is_some() {
                        (resumed, from) = self.resumed(user, &dir).await?;
                    }
                } else {
                    readable(check, &dir)?;
                    (resumed, from) = self.resumed(user, &dir).await?;
                }
            }
            (None, Some(from)) => {
                let from = order::on_node(&order.spec, Path::new(from));
                let as_user = &self.parts.owners.as_user;
                let check =
                    checkpoint::verify_resume(as_user, user, &dir, job, &order.marker, &from).await;
                readable(check, &dir)?;
            }
            (_, _) => {
                self.mark(user, &dir).await?;
                (resumed, from) = self.resumed(user, &dir).await?;
            }
        }
        if let Some(own) = plan.folder_of(order.attempt) {
            self.make_dir(user, dir.join(own)).await?;
        }
        // The journal of the observer is kept in the attempt's directory.
        self.write_record().await?;
        if let Some(from) = from {
            let dir = self.dir.clone();
            let written = spawn_blocking(move || dir.write_resumed_from(&from)).await;
            written.map_err(|error| node_fault(&error))?.map_err(|error| node_fault(&error))?;
        }
        let (as_user, timings) = (&self.parts.owners.as_user, self.parts.timings);
        let observer = super::checkpoints::observe(as_user, timings, &self.record, user, &self.dir);
        let observer = observer.await.map_err(|error| user_fault(&error))?;
        observer.ready(LISTING_MAX).await.map_err(|error| node_fault(&error))?;
        Ok((Some(observer), resumed))
    }

    /// Makes the directory, and leaves the job's marker in it.
    async fn mark(&self, user: &User, dir: &Path) -> Result<(), AttemptEnd> {
        self.make_dir(user, dir.to_owned()).await?;
        let (as_user, order) = (&self.parts.owners.as_user, &self.record.order);
        let job = order.job.as_str();
        let written = checkpoint::write_marker(as_user, user, dir, job, &order.marker);
        written.await.map_err(|error| of_user_op(&error))
    }

    async fn make_dir(&self, user: &User, path: PathBuf) -> Result<(), AttemptEnd> {
        let made = self.parts.owners.as_user.call(user, Op::CheckDir { path, create: true }).await;
        made.map(drop).map_err(|error| of_user_op(&error))
    }

    /// What it resumes from, chosen by a helper as the user; none where it begins from nothing.
    async fn resumed(
        &self,
        user: &User,
        dir: &Path,
    ) -> Result<(Option<Resumed>, Option<ResumedFrom>), AttemptEnd> {
        let order = &self.record.order;
        let Some(resume) = &order.resume else { return Ok((None, None)) };
        let plan = order.spec.checkpoint.as_ref();
        let on_node = |path: &str| order::on_node(&order.spec, Path::new(path));
        let candidates = resume.candidates.iter().cloned().map(|mut candidate| {
            candidate.path = on_node(&candidate.path).to_string_lossy().into_owned();
            candidate
        });
        let own = plan.and_then(|plan| {
            let folder = plan.folder_of(order.attempt)?;
            Some(OwnDir { folder, by_variable: plan.by_variable })
        });
        // The program does not look into the directories of earlier attempts.
        let may_move =
            own.is_none() && !resume.shared_dir && plan.is_some_and(|plan| !plan.no_aside);
        let request = ResumeRequest {
            dir: dir.to_owned(),
            job: order.job.to_string(),
            attempt: order.attempt,
            pattern: plan.and_then(|plan| plan.pattern.clone()),
            rule: plan.map(|plan| plan.rule.clone()).unwrap_or_default(),
            candidates: candidates.collect(),
            by_owner: resume.by_owner,
            path: resume.path.as_deref().map(on_node),
            look: resume.others_dead
                && !resume.shared_dir
                && !resume.by_owner
                && resume.below.is_none()
                && plan.is_some(),
            aside: may_move,
            scratch: resume.scratch,
            own,
        };
        let outside = request.path.is_some();
        let answer = self
            .parts
            .owners
            .as_user
            .call(user, Op::Checkpoint(CheckpointOp::Resume(Box::new(request))))
            .await;
        let answer = match answer.map_err(|error| of_user_op(&error))? {
            Reply::Resume(answer) => *answer,
            _ => {
                let message = "the helper answered another question".to_owned();
                return Err(AttemptEnd::NodeFault { message });
            }
        };
        match answer {
            ResumeAnswer::Taken { mut resumed, from } => {
                self.as_the_job_sees(&mut resumed);
                Ok((Some(resumed), from))
            }
            ResumeAnswer::FromNothing(mut resumed) => {
                self.as_the_job_sees(&mut resumed);
                Ok((Some(resumed).filter(|resumed| !resumed.aside.is_empty()), None))
            }
            ResumeAnswer::Nothing { tried } if outside => {
                let message = format!("--resume-from {}", tried.join("; "));
                Err(AttemptEnd::CannotStart { message })
            }
            ResumeAnswer::Nothing { tried } => Err(AttemptEnd::NothingToResume { tried }),
        }
    }

    fn as_the_job_sees(&self, resumed: &mut Resumed) {
        let spec = &self.record.order.spec;
        let paths = resumed.aside.iter_mut().chain(&mut resumed.back);
        for path in paths.chain([&mut resumed.path]).filter(|path| !path.is_empty()) {
            *path = order::in_job(spec, Path::new(path.as_str())).to_string_lossy().into_owned();
        }
    }

    /// The image, unless that is the node's own system.
    async fn fetch(&self) -> Result<Option<fleet_image::Image>, Refusal> {
        let images = &self.parts.images;
        let reference = self.image.reference().map_err(|error| user_fault(error))?;
        let fetched = match reference {
            ImageRef::Host => return Ok(None),
            // Everybody's, so its owner need not be known yet.
            ImageRef::Registry(name) => images.pull(name, self.progress(name)).await,
            ImageRef::DockerDaemon(_)
            | ImageRef::OciDir { .. }
            | ImageRef::OciArchive { .. }
            | ImageRef::DockerArchive { .. }
            | ImageRef::Path(_) => {
                let user = self.user().await?;
                images.resolve(reference, &user, self.progress(reference)).await
            }
        };
        self.says.send_replace(String::new());
        fetched.map(Some).map_err(|error| match &error {
            ImageError::Registry(registry) if registry.is_passing() => {
                Refusal::NoImage(node_fault(&error))
            }
            _ => of_image(&error).into(),
        })
    }

    /// Shows how far an image is, where the job's own words will be.
    fn progress(
        &self,
        name: &impl Display,
    ) -> impl Fn(fleet_image::Progress) + Send + Sync + 'static {
        let (says, name) = (self.says.clone(), name.to_string());
        move |progress| drop(says.send_replace(preparing(&name, progress)))
    }

    /// The root file system: of this image, or the node's own.
    async fn image(&self, fetched: Option<fleet_image::Image>) -> Result<Image, AttemptEnd> {
        let Some(found) = fetched else { return Ok(Image::Host) };
        self.write_record().await?;
        if let Some(digest) = found.manifest.clone() {
            let used = ImageUsed { digest, note: found.note.clone() };
            self.dir.write_image(&used).map_err(|error| node_fault(&error))?;
        }
        let config = found.config.clone();
        let dir = self.dir.path().to_owned();
        let mounted = spawn_blocking(move || fleet_image::mount(&found, &dir)).await;
        let mounted = mounted.map_err(|error| node_fault(&error))?;
        let path = mounted.map_err(|error| node_fault(&error))?.path;
        Ok(Image::Rootfs { path, readonly: false, config })
    }

    async fn write_record(&self) -> Result<(), AttemptEnd> {
        let (dir, record) = (self.dir.clone(), Arc::clone(&self.record));
        let written = spawn_blocking(move || dir.write_record(&record)).await;
        written.map_err(|error| node_fault(&error))?.map_err(|error| node_fault(&error))
    }

    /// The record and everything the shim needs, on disk.
    async fn bundle(
        &self,
        user: User,
        leased: Leased,
        image: Image,
        resumed: Option<&Resumed>,
    ) -> Result<(), AttemptEnd> {
        let order = &self.record.order;
        let resume_from = match &order.resume {
            Some(_) => resumed.map(|resumed| &resumed.path).filter(|path| !path.is_empty()),
            // The order's own path is for a fleet that names one path alone.
            None => order.resume_from.as_ref(),
        };
        let resume_from = resume_from.map(PathBuf::from);
        let Leased { cards, near_cpus } = leased;
        let prepared = Prepared { user, image, cards, near_cpus, resume_from };
        let (parts, record, dir) =
            (Arc::clone(&self.parts), Arc::clone(&self.record), self.dir.clone());
        let write = move || -> Result<(), AttemptEnd> {
            dir.write_record(&record).map_err(|error| node_fault(&error))?;
            dir.set_room_aside().map_err(|error| node_fault(&error))?;
            dir.make_run_dir(&parts.volatile_dir).map_err(|error| node_fault(&error))?;
            let runtime = parts.programs.runtime().map_err(|error| node_fault(&error))?;
            let majors = if prepared.cards.is_empty() {
                NvidiaMajors::default()
            } else {
                NvidiaMajors::read(Path::new(PROC_DEVICES)).map_err(|error| node_fault(&error))?
            };
            let settings = parts.programs.settings(&runtime, majors);
            let made = prepare(dir.path(), &record, &prepared, &settings);
            made.map(drop).map_err(|error| of_prepare(&error))
        };
        spawn_blocking(write).await.map_err(|error| node_fault(&error))?
    }
}

fn readable(check: ResumeCheck, dir: &Path) -> Result<(), AttemptEnd> {
    match check.problem(dir) {
        Some(message) => Err(AttemptEnd::CannotResume { message }),
        None => Ok(()),
    }
}

fn of_user_op(error: &AsUserError) -> AttemptEnd {
    match error {
        AsUserError::Op(_) => user_fault(error),
        AsUserError::TimedOut { .. }
        | AsUserError::TooManyStuck { .. }
        | AsUserError::Start(_)
        | AsUserError::Helper { .. } => node_fault(error),
    }
}

/// What is shown of a job whose image is on its way.
fn preparing(name: &str, progress: fleet_image::Progress) -> String {
    let fleet_image::Progress { phase, bytes_done, bytes_total } = progress;
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let share = format!("{} of {} MiB", mib(bytes_done), mib(bytes_total));
    match phase {
        fleet_image::PullPhase::Waiting => format!("waits for image {name}"),
        fleet_image::PullPhase::Pulling => format!("pulls image {name}: {share}"),
        fleet_image::PullPhase::Reading => format!("reads image {name}: {share}"),
        fleet_image::PullPhase::Unpacking => format!("unpacks image {name}: {share}"),
    }
}

fn of_image(error: &ImageError) -> AttemptEnd {
    match error {
        ImageError::Registry(registry) if registry.is_the_nodes() => node_fault(error),
        ImageError::Daemon(daemon) if daemon.is_the_nodes() => node_fault(error),
        ImageError::Source(source) => match of_user_op(source) {
            AttemptEnd::CannotStart { .. } => user_fault(error),
            _ => node_fault(error),
        },
        ImageError::DiskFull { .. }
        | ImageError::StoreFull { .. }
        | ImageError::Io { .. }
        | ImageError::Write { .. }
        | ImageError::Busy { .. }
        | ImageError::ThreadDied => node_fault(error),
        _ => user_fault(error),
    }
}

fn of_prepare(error: &PrepareError) -> AttemptEnd {
    match error {
        PrepareError::Environment(_)
        | PrepareError::BadId { .. }
        | PrepareError::Argv { .. }
        | PrepareError::Cwd { .. }
        | PrepareError::Volume { .. }
        | PrepareError::Image { .. }
        | PrepareError::ClosedRoot { .. }
        | PrepareError::TooManyVolumes => user_fault(error),
        _ => node_fault(error),
    }
}

/// Where the attempt saves, as the node sees it.
pub(super) fn checkpoint_dir(record: &Record) -> Option<PathBuf> {
    let base = order::checkpoint_base(&record.order.spec)?;
    let plan = record.order.spec.checkpoint.as_ref()?;
    Some(match plan.folder_of(record.order.attempt) {
        Some(own) => base.join(own),
        None => base,
    })
}
