//! `web`.

use clap::Args;

#[derive(Debug, Args)]
#[command(
    after_help = "It prints an address. Open it in a browser within a minute and press the button: the browser is you for 12 \
    hours. The address works once. Do not give it to anybody.\n\n\
    There is a web page if an admin has set `[web] listen` in controller.toml.\n\n\
    Examples:\n  \
    fleet web\n  \
    fleet web --log-out"
)]
pub(crate) struct WebArgs {
    /// Log all your browsers out
    #[arg(long)]
    pub(crate) log_out: bool,
}
