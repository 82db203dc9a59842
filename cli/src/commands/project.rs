//! `project list|show|create|set|rm`, and `share`.

use fleet_core::Rejection;
use fleet_proto::json::project::{Project, ShareLine};
use fleet_proto::v1::{
    ListProjectsRequest, ListProjectsResponse, ProjectLimits, SetHalfLifeRequest, SetProjectRequest,
};

use super::Context;
use crate::args::{
    ProjectCreateArgs, ProjectLimitArgs, ProjectListArgs, ProjectRmArgs, ProjectSetArgs,
    ProjectShowArgs, ShareArgs,
};
use crate::client::Client;
use crate::consent::Consent;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::Printer;
use crate::output::text::{print, say};
use crate::times::length;

/// What it is called in messages.
const KIND: &str = "project";
/// What `--weight` takes beside a number.
const BY_PEOPLE: &str = "people";

async fn fetch(client: &Client, names: Vec<String>) -> Result<ListProjectsResponse, Failure> {
    let request = ListProjectsRequest { names };
    client.call(request, async |api, r| api.list_projects(r).await).await
}

pub(super) async fn list(context: &Context, args: &ProjectListArgs) -> Result<Exit, Failure> {
    let client = context.client()?.stale(args.stale.stale);
    let printer = context.printer(&args.output)?;
    let mut all: Vec<Project> =
        fetch(&client, Vec::new()).await?.items.into_iter().map(Project::from).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    print(&printer.list(&all)?)?;
    Ok(Exit::Done)
}

pub(super) async fn show(context: &Context, args: &ProjectShowArgs) -> Result<Exit, Failure> {
    let client = context.client()?.stale(args.stale.stale);
    let printer = context.printer(&args.output)?;
    let found = fetch(&client, vec![args.project.clone()]).await?.items.into_iter().next();
    let Some(project) = found else {
        return Err(Failure::of_rejection(
            Rejection::not_found(KIND, &args.project),
            &context.clock,
        ));
    };
    print(&printer.one(&Project::from(project))?)?;
    Ok(Exit::Done)
}

pub(super) async fn create(context: &Context, args: &ProjectCreateArgs) -> Result<Exit, Failure> {
    let request = SetProjectRequest {
        name: args.project.clone(),
        create: true,
        add_members: args.members.clone(),
        add_groups: args.groups.clone(),
        weight: args.weight,
        limits: limits(args.limits),
        ..SetProjectRequest::default()
    };
    change(context, request, args.consent, &context.printer(&args.output)?).await
}

pub(super) async fn set(context: &Context, args: &ProjectSetArgs) -> Result<Exit, Failure> {
    let weight = match args.weight.as_deref() {
        None => None,
        Some(BY_PEOPLE) => Some(0),
        Some(text) => {
            let problem = |_| Failure::usage("--weight", "write a number from 1, or `people`");
            Some(text.parse::<std::num::NonZeroU32>().map_err(problem)?.get())
        }
    };
    let request = SetProjectRequest {
        name: args.project.clone(),
        add_members: args.add_members.clone(),
        remove_members: args.remove_members.clone(),
        add_groups: args.add_groups.clone(),
        remove_groups: args.remove_groups.clone(),
        weight,
        limits: limits(args.limits),
        ..SetProjectRequest::default()
    };
    change(context, request, args.consent, &context.printer(&args.output)?).await
}

fn limits(said: ProjectLimitArgs) -> Option<ProjectLimits> {
    let ProjectLimitArgs { gpus, gpus_each, gpu_hours, gpu_hours_each } = said;
    Some(ProjectLimits { gpus, gpus_each, gpu_hours, gpu_hours_each })
}

/// Asks again where it names users that nobody has heard of, and somebody says that they are no mistake.
async fn change(
    context: &Context,
    request: SetProjectRequest,
    consent: Consent,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let client = context.client()?;
    let send = async |new_users| {
        let request =
            SetProjectRequest { meta: client.request_meta()?, new_users, ..request.clone() };
        client.call(request, async |api, r| api.set_project(r).await).await
    };
    for project in super::naming_users(&client, consent, send).await?.items {
        print(&printer.one(&Project::from(project))?)?;
    }
    Ok(Exit::Done)
}

pub(super) async fn remove(context: &Context, args: &ProjectRmArgs) -> Result<Exit, Failure> {
    let client = context.client()?;
    args.consent.ask(&format!("Remove project {}?", args.project))?;
    let (meta, name) = (client.request_meta()?, args.project.clone());
    let request = SetProjectRequest { meta, name, remove: true, ..SetProjectRequest::default() };
    client.call(request, async |api, r| api.set_project(r).await).await?;
    say(&format!("project {} is removed", args.project));
    Ok(Exit::Done)
}

pub(super) async fn share(context: &Context, args: &ShareArgs) -> Result<Exit, Failure> {
    let client = context.client()?.stale(args.stale.stale);
    let printer = context.printer(&args.output)?;
    let answer = match &args.half_life {
        None => fetch(&client, Vec::new()).await?,
        Some(text) => {
            let half_life_ms = context.length("--half-life", text)?;
            let request = SetHalfLifeRequest { meta: client.request_meta()?, half_life_ms };
            client.call(request, async |api, r| api.set_half_life(r).await).await?
        }
    };
    say(&format!("what was used counts half after {}", length(answer.half_life_ms)));
    let projects = answer.items.into_iter().map(Project::from);
    let lines: Vec<ShareLine> = projects.flat_map(ShareLine::all).collect();
    print(&printer.list(&lines)?)?;
    Ok(Exit::Done)
}
