//! One file per verb or noun: reads its arguments, asks, prints.
//!
//! [`Context`] is what they share. A command never prints a result before all of it is there, so
//! that a failure leaves no half output; streams (`logs`, `run`, `audit export`) are the exception.

mod approval;
mod attach;
mod audit;
mod authority;
mod bars;
mod calendar;
mod checkpoint;
mod class;
mod controller;
mod cp;
mod dev;
mod docker;
mod doctor;
mod drain_preview;
mod enforce;
mod exec;
mod feed;
mod gpu;
mod gpu_history;
mod held;
mod hold;
mod image;
mod import;
mod job;
mod keys;
mod limits;
mod local;
mod login;
mod logs;
mod manual;
mod members;
mod node;
mod nodes_without_gpus;
mod notify;
mod offer;
mod operations;
mod progress;
mod project;
mod reservation;
mod reservation_set;
mod reserve;
mod run;
mod series;
mod signals;
mod snapshot;
mod ssh;
mod status;
mod streams;
mod terminal;
mod token;
mod usage;
mod user;
mod waitlist;
mod watch;
mod web;
mod why;

use std::path::PathBuf;

use fleet_core::state::REQUEST_WINDOW;

use crate::args::{
    AuditVerb, CalendarVerb, CheckpointVerb, Cli, ControllerVerb, GpuVerb, ImageVerb, JobVerb,
    NodeVerb, NotifyVerb,
};
use crate::args::{
    CheckpointListArgs, ClassVerb, ControllerStatusArgs, DevVerb, FeedVerb, OutputArgs, OwnerArgs,
    ProjectVerb, ReservationVerb, SnapshotVerb, TokenVerb, UserVerb, Verb,
};
use crate::client::{Client, RequestId, Requests};
use crate::config::{Config, Remote};
use crate::consent::{Consent, NewUsers};
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::login::Login;
use crate::output::Printer;
use crate::output::text::say;
use crate::times::{Clock, Edge, When, length, parse_length, parse_past, read_when};

/// What every command gets: where the controller may be, the clock, how to print.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    config: Option<PathBuf>,
    pub(crate) json: bool,
    pub(crate) clock: Clock,
    /// Where somebody vouches for the user: the way in, or why there is none.
    vouched: Option<Result<Remote, Failure>>,
    login: Option<Login>,
    requests: Requests,
}

impl Context {
    /// The connection to the controller; nothing is sent yet.
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        let mut config = Config::find(self.config.as_deref())?;
        match &self.vouched {
            Some(Ok(remote)) => {
                config.remote = Some(remote.clone());
                config.socket = None;
            }
            // Nobody vouches now: where a controller lives beside the user, it may be on its way back.
            Some(Err(failure))
                if failure.exit == Exit::Unreachable
                    && config.socket.as_ref().is_some_and(|socket| socket.exists()) => {}
            Some(Err(failure)) => return Err(failure.clone()),
            None => {}
        }
        let client = Client::new(&config, self.clock.clone())?;
        let login = self.login.clone().filter(|_| matches!(self.vouched, Some(Ok(_))));
        Ok(client.counting_in(self.requests.clone()).vouched_by(login))
    }

    pub(crate) fn printer(&self, args: &OutputArgs) -> Result<Printer, Failure> {
        Printer::new(self.json, args, self.clock.clone())
    }

    /// Where the agent of this machine listens, if the settings can be read.
    pub(crate) fn agent_socket(&self) -> Option<PathBuf> {
        Config::find(self.config.as_deref()).ok()?.agent_socket
    }

    /// The file that `--config` or `FLEET_CONFIG` names.
    pub(crate) fn named_config(&self) -> Option<&PathBuf> {
        self.config.as_ref()
    }

    /// A time as typed after `flag`. Says what it is taken for where the text leaves that open.
    pub(crate) fn when(&self, flag: &str, text: &str, edge: Edge) -> Result<When, Failure> {
        let read = read_when(text, self.clock.now, self.clock.zone(), edge);
        let read = read.map_err(|e| Failure::usage(flag, e))?;
        for taken in &read.taken {
            let typed = format!("{flag} {}", text.trim());
            say(&format!("note: {}", taken.sentence(&typed, &self.clock)));
        }
        Ok(read.when)
    }

    /// A time of what happened as typed after `flag`, in milliseconds; 0 where it is left out.
    pub(crate) fn past(&self, flag: &str, text: Option<&String>) -> Result<u64, Failure> {
        let Some(text) = text else { return Ok(0) };
        let at = parse_past(text, self.clock.now, self.clock.zone());
        Ok(When::At(at.map_err(|e| Failure::usage(flag, e))?).unix_ms())
    }

    /// A length as typed after `flag`, in milliseconds.
    pub(crate) fn length(&self, flag: &str, text: &str) -> Result<u64, Failure> {
        parse_length(text).map_err(|error| {
            let failure = Failure::usage(flag, error);
            // `-it CMD` in parts that were not joined: -t takes the command for a length.
            if matches!(text, "bash" | "sh" | "zsh" | "python3" | "python") {
                return failure.hint("for a terminal write -i --tty; -t is a length of time");
            }
            failure
        })
    }

    /// A length that may be left out.
    pub(crate) fn length_of(
        &self,
        flag: &str,
        text: Option<&String>,
    ) -> Result<Option<u64>, Failure> {
        text.map(|text| self.length(flag, text)).transpose()
    }
}

/// The owner to filter by: a name, the caller, or everybody (empty).
async fn owner_filter(client: &Client, owner: &OwnerArgs) -> Result<String, Failure> {
    match (&owner.user, owner.me) {
        (Some(user), _) => Ok(user.clone()),
        (None, true) => caller(client).await,
        (None, false) => Ok(String::new()),
    }
}

/// Who the controller takes the caller for.
async fn caller(client: &Client) -> Result<String, Failure> {
    let request = fleet_proto::v1::GetStatusRequest {};
    Ok(client.call(request, async |api, r| api.get_status(r).await).await?.caller)
}

/// The clock and the requests of a command that is typed again: its times are reckoned from when it was typed first.
fn repeated(id: RequestId, clock: &Clock) -> Result<(Clock, Requests), Failure> {
    let age = clock.now_ms().saturating_sub(id.made_at_unix_ms);
    if age > REQUEST_WINDOW.0 {
        let problem = format!(
            "this request was made {} ago, and answers are kept for {}",
            length(age),
            length(REQUEST_WINDOW.0)
        );
        let hint = "see what is there (fleet ps, fleet reservation list, fleet why) before you ask again without it";
        return Err(Failure::usage("--request-id", problem).hint(hint));
    }
    Ok((clock.at(id.made_at_unix_ms), Requests::again(id)))
}

/// A connection for words that TAB offers.
pub(crate) async fn client_for_completion(config: Option<PathBuf>) -> Result<Client, Failure> {
    let (clock, requests) = (Clock::of_this_machine(), Requests::default());
    let login = Config::find(config.as_deref()).ok().as_ref().and_then(Login::of);
    let vouched = match &login {
        Some(login) => Some(login.remote().await),
        None => None,
    };
    Context { config, json: false, clock, vouched, login, requests }.client()
}

/// Carries out what was typed.
pub(crate) async fn run(cli: Cli) -> Result<Exit, Failure> {
    let (clock, requests) = match cli.request_id {
        Some(id) => repeated(id, &Clock::of_this_machine())?,
        None => (Clock::of_this_machine(), Requests::default()),
    };
    let named = cli.config.or_else(|| std::env::var_os("FLEET_CONFIG").map(PathBuf::from));
    let config = named.filter(|file| !file.as_os_str().is_empty());
    let json = cli.json;
    let mut context = Context { config, json, clock, vouched: None, login: None, requests };
    // What is wrong with the settings is said by the command itself.
    let config =
        Config::find(context.config.as_deref()).ok().filter(|_| cli.verb.asks_controllers());
    let login = config.as_ref().and_then(Login::of);
    if let Some(login) = &login {
        context.vouched = Some(login.remote().await);
        context.login = Some(login.clone());
    }
    // On the heap: the largest of its many futures would fill the stack.
    let ended = Box::pin(carry_out(&context, cli.verb)).await;
    let ended = match &login {
        Some(login) => ended.map_err(|failure| login.explain(failure)),
        None => ended,
    };
    if ended.as_ref().is_err_and(|failure| failure.certificate_refused) {
        // The next command asks for another one.
        match (login, config.as_ref().and_then(|config| config.socket.as_ref())) {
            (Some(login), _) => login.forget(),
            (None, Some(socket)) => crate::login::forget_by_socket(socket),
            (None, None) => {}
        }
    }
    ended
}

async fn carry_out(context: &Context, verb: Verb) -> Result<Exit, Failure> {
    match verb {
        Verb::Login(args) => login::run(context, &args).await,
        Verb::Reserve(args) => reserve::run(context, &args).await,
        Verb::Release(args) => reservation::release(context, &args).await,
        Verb::Extend(args) => reservation::extend(context, &args).await,
        Verb::Ssh(args) => ssh::run(context, &args).await,
        // Large: what it asks for is a job with all its options.
        Verb::Run(args) => Box::pin(run::run(context, &args)).await,
        Verb::Exec(args) => exec::run(context, args).await,
        Verb::Attach(args) => run::attach(context, &args).await,
        Verb::Cp(args) => cp::run(context, &args).await,
        Verb::Docker(args) => docker::run(context, &args).await,
        Verb::Ps(args) => job::ps(context, &args).await,
        Verb::Logs(args) => logs::run(context, &args).await,
        Verb::Cancel(args) => job::cancel(context, &args).await,
        Verb::Why(args) => why::run(context, &args).await,
        Verb::Web(args) => web::run(context, &args).await,
        Verb::Notify(args) => match args.verb {
            None => notify::show(context, &args.show).await,
            Some(NotifyVerb::Show(show)) => notify::show(context, &show).await,
            Some(NotifyVerb::Set(set)) => notify::set(context, &set).await,
            Some(NotifyVerb::Test(test)) => notify::test(context, &test).await,
        },
        Verb::Calendar(args) => match args.verb {
            None => calendar::run(context, &args.show).await,
            Some(CalendarVerb::Feed(feed)) => match feed.verb {
                None => feed::list(context, &feed.list).await,
                Some(FeedVerb::Create(create)) => feed::create(context, &create).await,
                Some(FeedVerb::List(list)) => feed::list(context, &list).await,
                Some(FeedVerb::Rm(rm)) => feed::remove(context, &rm).await,
            },
        },
        Verb::Share(args) => project::share(context, &args).await,
        Verb::Usage(args) => usage::run(context, &args).await,
        Verb::Class(args) => match args.verb {
            None => class::list(context, &args.list).await,
            Some(ClassVerb::List(list)) => class::list(context, &list).await,
            Some(ClassVerb::Show(show)) => class::show(context, &show).await,
            Some(ClassVerb::Create(create)) => class::create(context, &create).await,
            Some(ClassVerb::Set(set)) => class::set(context, &set).await,
            Some(ClassVerb::Rm(rm)) => class::remove(context, &rm).await,
        },
        Verb::Project(args) => match args.verb {
            None => project::list(context, &args.list).await,
            Some(ProjectVerb::List(list)) => project::list(context, &list).await,
            Some(ProjectVerb::Show(show)) => project::show(context, &show).await,
            Some(ProjectVerb::Create(create)) => project::create(context, &create).await,
            Some(ProjectVerb::Set(set)) => project::set(context, &set).await,
            Some(ProjectVerb::Rm(rm)) => project::remove(context, &rm).await,
        },
        Verb::Status(args) => status::run(context, &args).await,
        Verb::Held(args) => held::run(context, &args).await,
        Verb::Top(args) => status::top(context, &args).await,
        Verb::Doctor(args) => doctor::run(context, &args).await,
        Verb::Node(args) => match args.verb {
            None => node::list(context, &args.list).await,
            Some(NodeVerb::List(list)) => node::list(context, &list).await,
            Some(NodeVerb::Show(show)) => node::show(context, &show).await,
            Some(NodeVerb::Cordon(cordon)) => node::cordon(context, &cordon).await,
            Some(NodeVerb::Uncordon(uncordon)) => node::uncordon(context, &uncordon).await,
            Some(NodeVerb::Drain(drain)) => node::drain(context, &drain).await,
            Some(NodeVerb::Token(token)) => match token.verb {
                TokenVerb::Create(create) => node::create_token(context, &create).await,
                TokenVerb::List(list) => token::list(context, &list).await,
                TokenVerb::Withdraw(withdraw) => token::withdraw(context, &withdraw).await,
            },
            Some(NodeVerb::Revoke(leave)) => node::revoke(context, &leave).await,
            Some(NodeVerb::Remove(leave)) => node::remove(context, &leave).await,
            Some(NodeVerb::Vouch(vouch)) => node::vouch(context, &vouch).await,
            Some(NodeVerb::Reboot(args)) => node::reboot(context, &args).await,
            Some(NodeVerb::Enforce(args)) => enforce::enforce(context, &args).await,
        },
        Verb::Gpu(args) => match args.verb {
            None => gpu::list(context, &args.list).await,
            Some(GpuVerb::List(list)) => gpu::list(context, &list).await,
            Some(GpuVerb::History(history)) => gpu_history::run(context, &history).await,
            Some(GpuVerb::Clear(clear)) => gpu::clear(context, &clear).await,
            Some(GpuVerb::DeclareFree(declare)) => gpu::declare_free(context, &declare).await,
            Some(GpuVerb::Forget(forget)) => gpu::forget(context, &forget).await,
        },
        Verb::Job(args) => match args.verb {
            None => job::list(context, &args.list).await,
            Some(JobVerb::List(list)) => job::list(context, &list).await,
            Some(JobVerb::Show(show)) => job::show(context, &show).await,
            Some(JobVerb::Set(set)) => job::set(context, &set).await,
            Some(JobVerb::Hold(args)) => hold::hold(context, &args).await,
            Some(JobVerb::Release(args)) => hold::release(context, &args).await,
            Some(JobVerb::Restart(restart)) => checkpoint::restart(context, &restart).await,
            Some(JobVerb::Rm(rm)) => job::remove(context, &rm).await,
            Some(JobVerb::Defaults(args)) => job::defaults(context, &args).await,
        },
        Verb::Reservation(args) => match args.verb {
            None => reservation::list(context, &args.list).await,
            Some(ReservationVerb::List(list)) => reservation::list(context, &list).await,
            Some(ReservationVerb::Show(show)) => reservation::show(context, &show).await,
            Some(ReservationVerb::Set(args)) => reservation_set::run(context, &args).await,
            Some(ReservationVerb::Import(args)) => import::run(context, &args).await,
            Some(ReservationVerb::Export(args)) => reservation::export(context, &args).await,
            Some(ReservationVerb::Rules(args)) => reservation::rules(context, &args).await,
            Some(ReservationVerb::Limits(args)) => limits::run(context, &args).await,
            Some(ReservationVerb::Accept(args)) => offer::accept(context, &args).await,
            Some(ReservationVerb::Decline(args)) => offer::decline(context, &args).await,
            Some(ReservationVerb::Approve(args)) => approval::approve(context, &args).await,
            Some(ReservationVerb::Deny(args)) => approval::deny(context, &args).await,
            Some(ReservationVerb::Approvers(args)) => approval::approvers(context, &args).await,
        },
        Verb::Image(args) => match args.verb {
            None => image::list(context, &args.list).await,
            Some(ImageVerb::List(list)) => image::list(context, &list).await,
            Some(ImageVerb::Pull(pull)) => image::pull(context, &pull).await,
            Some(ImageVerb::Rm(rm)) => image::rm(context, &rm).await,
            Some(ImageVerb::Prune(prune)) => image::prune(context, &prune).await,
        },
        Verb::Checkpoint(args) => match args.verb {
            None => checkpoint::list(context, &CheckpointListArgs::default()).await,
            Some(CheckpointVerb::List(list)) => checkpoint::list(context, &list).await,
            Some(CheckpointVerb::Now(now)) => checkpoint::now(context, &now).await,
        },
        Verb::User(args) => match args.verb {
            None => user::list(context, &args.list).await,
            Some(UserVerb::List(list)) => user::list(context, &list).await,
            Some(UserVerb::Show(show)) => user::show(context, &show).await,
            Some(UserVerb::Disable(disable)) => user::disable(context, &disable).await,
            Some(UserVerb::Enable(enable)) => user::enable(context, &enable).await,
            Some(UserVerb::Revoke(revoke)) => user::revoke(context, &revoke).await,
        },
        Verb::Audit(args) => match args.verb {
            AuditVerb::Export(export) => audit::export(context, &export).await,
            AuditVerb::Verify(verify) => audit::verify(context, &verify),
            AuditVerb::Prune(prune) => audit::prune(context, &prune).await,
        },
        Verb::Controller(args) => match args.verb {
            None => controller::status(context, &ControllerStatusArgs::default()).await,
            Some(ControllerVerb::Status(status)) => controller::status(context, &status).await,
            Some(ControllerVerb::List(output)) => members::list(context, &output).await,
            Some(ControllerVerb::Add(add)) => members::add(context, &add).await,
            Some(ControllerVerb::Remove(remove)) => members::remove(context, &remove).await,
            Some(ControllerVerb::TransferLeadership(transfer)) => {
                members::transfer(context, &transfer).await
            }
            Some(ControllerVerb::Ca(ca)) => authority::run(context, ca.verb).await,
            Some(ControllerVerb::ThawEvictions(thaw)) => controller::thaw(context, &thaw).await,
            Some(ControllerVerb::ResetClock(reset)) => {
                controller::reset_clock(context, &reset).await
            }
            Some(ControllerVerb::Snapshot(snapshot)) => match snapshot.verb {
                SnapshotVerb::Save(save) => snapshot::save(context, &save).await,
            },
            Some(ControllerVerb::LogLevel(level)) => operations::log_level(context, &level).await,
            Some(ControllerVerb::DebugBundle(to)) => operations::debug_bundle(context, &to).await,
        },
        Verb::Dev(args) => match &args.verb {
            None => dev::run(&args).await,
            Some(DevVerb::Fault(fault)) => dev::fault(context, fault).await,
            Some(DevVerb::Agent(agent)) => dev::agent(context, agent).await,
        },
        Verb::Manual { dir } => manual::run(&dir),
        Verb::Completion { shell } => {
            let unknown = || Failure::usage("SHELL", format!("{shell} has no completion"));
            let script = crate::completion::script(&shell.to_string()).ok_or_else(unknown)?;
            let script = script.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
            crate::output::text::print(&script)?;
            Ok(Exit::Done)
        }
    }
}

/// Sends what names users. Asks where nobody has heard of them, and sends again where somebody says that they are no
/// mistake: `send` takes whether new users are allowed.
async fn naming_users<T>(
    client: &Client,
    consent: Consent,
    send: impl AsyncFn(bool) -> Result<T, Failure>,
) -> Result<T, Failure> {
    match send(consent.yes).await {
        Err(failure) if failure.names_unknown_users() => {
            NewUsers { yes: consent.yes }.ask(failure)?;
            client.ask_anew()?;
            send(true).await
        }
        answer => answer,
    }
}
