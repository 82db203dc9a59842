//! `why`: what happened to a thing, and why it is as it is.

use fleet_proto::v1::ExplainRequest;

use super::Context;
use crate::args::WhyArgs;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::story::Story;
use crate::output::text::print;

pub(super) async fn run(context: &Context, args: &WhyArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let id = client.resolve("", &args.id).await?;
    let request = ExplainRequest { id };
    let story = Story::from(client.call(request, async |api, r| api.explain(r).await).await?);
    let text =
        if printer.for_people() { story.told(&context.clock) } else { printer.one(&story)? };
    print(&text)?;
    Ok(Exit::Done)
}
