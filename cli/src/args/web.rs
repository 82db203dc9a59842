//! `web`.

use clap::Args;

#[derive(Debug, Args)]
#[command(
    after_help = "It prints an address. Open it in a browser within a minute: the browser is you for 12 hours. The address works \
    once, so nobody can use it after you. Do not give it to anybody.\n\n\
    A site has a web page if its admins set `[web] listen` in controller.toml.\n\n\
    Examples:\n  \
    fleet web\n  \
    fleet web --log-out"
)]
pub(crate) struct WebArgs {
    /// Log all your browsers out
    #[arg(long)]
    pub(crate) log_out: bool,
}
