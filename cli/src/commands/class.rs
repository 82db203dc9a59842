//! `class list|show|create|set|rm`.

use fleet_core::Rejection;
use fleet_proto::json::class::Class;
use fleet_proto::v1::{ListClassesRequest, ListClassesResponse, SetClassRequest};

use super::Context;
use crate::args::{
    ClassCreateArgs, ClassListArgs, ClassRmArgs, ClassRules, ClassSetArgs, ClassShowArgs,
};
use crate::client::Client;
use crate::consent::Consent;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::Printer;
use crate::output::text::{print, say};

/// What it is called in messages.
const KIND: &str = "class";

async fn fetch(client: &Client, names: Vec<String>) -> Result<ListClassesResponse, Failure> {
    let request = ListClassesRequest { names };
    client.call(request, async |api, r| api.list_classes(r).await).await
}

pub(super) async fn list(context: &Context, args: &ClassListArgs) -> Result<Exit, Failure> {
    let client = context.client()?.stale(args.stale.stale);
    let printer = context.printer(&args.output)?;
    let all = fetch(&client, Vec::new()).await?.items.into_iter();
    let all: Vec<Class> = all.map(Class::from).collect();
    print(&printer.list(&all)?)?;
    Ok(Exit::Done)
}

pub(super) async fn show(context: &Context, args: &ClassShowArgs) -> Result<Exit, Failure> {
    let client = context.client()?.stale(args.stale.stale);
    let printer = context.printer(&args.output)?;
    let found = fetch(&client, vec![args.class.clone()]).await?.items.into_iter().next();
    let Some(class) = found else {
        return Err(Failure::of_rejection(Rejection::not_found(KIND, &args.class), &context.clock));
    };
    print(&printer.one(&Class::from(class))?)?;
    Ok(Exit::Done)
}

/// What is said of the class, beside who may use it.
fn said(context: &Context, class: &str, rules: &ClassRules) -> Result<SetClassRequest, Failure> {
    let time = |option: &str, text: &Option<String>| match text.as_deref() {
        None => Ok(None),
        // Nothing is guaranteed.
        Some("0") if option == "--min-run" => Ok(Some(0)),
        Some(text) => context.length(option, text).map(Some),
    };
    Ok(SetClassRequest {
        name: class.to_owned(),
        priority: rules.priority,
        everybody: rules.everybody,
        preempts: rules.preempts,
        preemptible: rules.preemptible.map(|which| which.word().to_owned()),
        min_run_ms: time("--min-run", &rules.min_run)?,
        save_limit_ms: time("--save-limit", &rules.save_limit)?,
        gpus_each: rules.gpus_each,
        ..SetClassRequest::default()
    })
}

pub(super) async fn create(context: &Context, args: &ClassCreateArgs) -> Result<Exit, Failure> {
    let request = SetClassRequest {
        create: true,
        add_members: args.members.clone(),
        add_groups: args.groups.clone(),
        ..said(context, &args.class, &args.rules)?
    };
    change(context, request, args.consent, &context.printer(&args.output)?).await
}

pub(super) async fn set(context: &Context, args: &ClassSetArgs) -> Result<Exit, Failure> {
    let request = SetClassRequest {
        add_members: args.add_members.clone(),
        remove_members: args.remove_members.clone(),
        add_groups: args.add_groups.clone(),
        remove_groups: args.remove_groups.clone(),
        ..said(context, &args.class, &args.rules)?
    };
    change(context, request, args.consent, &context.printer(&args.output)?).await
}

/// Asks again where it names users that nobody has heard of, and somebody says that they are no mistake.
async fn change(
    context: &Context,
    request: SetClassRequest,
    consent: Consent,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let client = context.client()?;
    let send = async |new_users| {
        let request =
            SetClassRequest { meta: client.request_meta()?, new_users, ..request.clone() };
        client.call(request, async |api, r| api.set_class(r).await).await
    };
    for class in super::naming_users(&client, consent, send).await?.items {
        print(&printer.one(&Class::from(class))?)?;
    }
    Ok(Exit::Done)
}

pub(super) async fn remove(context: &Context, args: &ClassRmArgs) -> Result<Exit, Failure> {
    let client = context.client()?;
    args.consent.ask(&format!("Remove class {}?", args.class))?;
    let (meta, name) = (client.request_meta()?, args.class.clone());
    let request = SetClassRequest { meta, name, remove: true, ..SetClassRequest::default() };
    client.call(request, async |api, r| api.set_class(r).await).await?;
    say(&format!("class {} is removed", args.class));
    Ok(Exit::Done)
}
