//! Asks for many things, a few at once, and answers in the order that they were typed in.
//!
//! Commands that take a list call it. It begins nothing more after the first failure or an interrupt, and waits for what
//! it began: so the account of what was done is true.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use crate::errors::Failure;
use crate::exit_code::Exit;

/// Requests on their way at once. Each waits for a write on a majority's disks, which takes many together; more would
/// push back what others ask.
const AT_ONCE: usize = 16;
/// Things whose fate is not known, as far as they are named.
const NAMED_MAX: usize = 8;
/// 128 and the number of SIGINT, as shells have it.
const INTERRUPTED: u8 = 130;

/// What became of a list.
#[derive(Debug)]
pub(crate) struct Outcome {
    asked: usize,
    done: usize,
    /// The first in the order of the list.
    failure: Option<Failure>,
    interrupted: bool,
    /// Nobody waited for their answer.
    unknown: Vec<String>,
}

enum Answer<'f, T> {
    Awaited(Pin<Box<dyn Future<Output = Result<T, Failure>> + 'f>>),
    Here(Result<T, Failure>),
}

/// Runs `one` for each of `ids` and gives the answers to `take` in their order. At the first end of `interrupt`
/// nothing more begins, at its second nobody waits any more; it may be dropped and called again before it ends.
pub(crate) async fn each<'f, T, F>(
    ids: &[String],
    one: impl Fn(String) -> F,
    mut take: impl FnMut(T),
    mut interrupt: impl AsyncFnMut(),
) -> Outcome
where
    F: Future<Output = Result<T, Failure>> + 'f,
{
    let mut rest = ids.iter();
    let mut begun: VecDeque<(&String, Answer<'f, T>)> = VecDeque::new();
    let mut outcome =
        Outcome { asked: 0, done: 0, failure: None, interrupted: false, unknown: Vec::new() };
    loop {
        while let Some((id, answer)) = begun.pop_front() {
            match answer {
                Answer::Here(Ok(answer)) => {
                    outcome.done += 1;
                    take(answer);
                }
                Answer::Here(Err(failure)) if outcome.failure.is_none() => {
                    outcome.failure = Some(failure);
                }
                // That something else failed too is one of those that are not done.
                Answer::Here(Err(_)) => {}
                awaited @ Answer::Awaited(_) => {
                    begun.push_front((id, awaited));
                    break;
                }
            }
        }
        while !outcome.interrupted && outcome.failure.is_none() && begun.len() < AT_ONCE {
            let Some(id) = rest.next() else { break };
            outcome.asked += 1;
            begun.push_back((id, Answer::Awaited(Box::pin(one(id.clone())))));
        }
        if begun.is_empty() {
            return outcome;
        }
        tokio::select! {
            biased;
            () = interrupt() => {
                if outcome.interrupted {
                    outcome.unknown = begun.into_iter().map(|(id, _)| id.clone()).collect();
                    return outcome;
                }
                outcome.interrupted = true;
            }
            () = some_answer(&mut begun) => {}
        }
    }
}

/// Returns when one more answer is here.
async fn some_answer<T>(begun: &mut VecDeque<(&String, Answer<'_, T>)>) {
    poll_fn(|context| {
        let mut came = Poll::Pending;
        for (_, answer) in begun.iter_mut() {
            if let Answer::Awaited(awaited) = answer
                && let Poll::Ready(here) = awaited.as_mut().poll(context)
            {
                *answer = Answer::Here(here);
                came = Poll::Ready(());
            }
        }
        // Where the others are here and only the first is not, its own wake comes.
        if begun.is_empty() { Poll::Ready(()) } else { came }
    })
    .await;
}

impl Outcome {
    /// The first failure.
    pub(crate) fn failed(self) -> Result<(), Failure> {
        self.failure.map_or(Ok(()), Err)
    }

    /// Nothing where all of `total` is done; else the failure, with what was done before it.
    pub(crate) fn account(self, done: &str, total: usize) -> Result<(), Failure> {
        let left = total - self.asked;
        let mut failure = match self.failure {
            Some(failure) => failure,
            None if !self.interrupted || self.done == total => return Ok(()),
            None => Failure::new(Exit::Program(INTERRUPTED), "interrupted"),
        };
        if total > 1 {
            let mut account = format!("{done} {} of {total}", self.done);
            if left > 0 {
                account.push_str(&format!("; {left} were left as they are"));
            }
            failure.details.push(account);
        }
        if !self.unknown.is_empty() {
            let (named, more) = self.unknown.split_at(self.unknown.len().min(NAMED_MAX));
            let mut named = named.join(", ");
            if !more.is_empty() {
                named.push_str(&format!(" and {} more", more.len()));
            }
            failure.details.push(format!("not known whether it was done: {named}"));
        }
        Err(failure)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::cell::{Cell, RefCell};

    use super::*;

    fn ids(count: usize) -> Vec<String> {
        (0..count).map(|number| number.to_string()).collect()
    }

    #[tokio::test]
    async fn answers_come_in_order_and_few_are_asked_at_once() {
        let (now, most) = (Cell::new(0_usize), Cell::new(0_usize));
        let order = RefCell::new(Vec::new());
        let one = |id: String| {
            let (now, most) = (&now, &most);
            async move {
                now.set(now.get() + 1);
                most.set(most.get().max(now.get()));
                // Later ones answer sooner.
                let turns = 16 - id.parse::<usize>().unwrap() % 16;
                for _ in 0..turns {
                    tokio::task::yield_now().await;
                }
                now.set(now.get() - 1);
                Ok(id)
            }
        };
        let ids = ids(100);
        let outcome = each(
            &ids,
            one,
            |id| order.borrow_mut().push(id),
            async || std::future::pending().await,
        )
        .await;
        assert_eq!(*order.borrow(), ids);
        assert_eq!(most.get(), AT_ONCE);
        outcome.account("released", 100).unwrap();
        let nothing =
            each(&[], async |id: String| Ok(id), |_| {}, async || std::future::pending().await)
                .await;
        nothing.account("released", 0).unwrap();
    }

    #[tokio::test]
    async fn after_a_failure_nothing_more_begins_and_what_was_done_is_counted() {
        let asked = Cell::new(0);
        let one = |id: String| {
            asked.set(asked.get() + 1);
            async move {
                match id.as_str() {
                    "20" | "22" => Err(Failure::new(Exit::Denied, format!("{id} is not yours"))),
                    _ => Ok(id),
                }
            }
        };
        let done = RefCell::new(Vec::new());
        let outcome = each(
            &ids(2000),
            one,
            |id| done.borrow_mut().push(id),
            async || std::future::pending().await,
        )
        .await;
        let failure = outcome.account("released", 2000).unwrap_err();
        assert!(asked.get() < 20 + 2 * AT_ONCE, "{}", asked.get());
        assert_eq!((failure.exit, failure.message.as_str()), (Exit::Denied, "20 is not yours"));
        let left = 2000 - asked.get();
        assert_eq!(
            failure.details,
            [format!("released {} of 2000; {left} were left as they are", done.borrow().len())]
        );
    }

    #[tokio::test]
    async fn an_interrupt_ends_with_a_true_account() {
        let gate = tokio::sync::Semaphore::new(40);
        let one = |id: String| {
            let gate = &gate;
            async move {
                gate.acquire().await.unwrap().forget();
                Ok(id)
            }
        };
        let interrupts = Cell::new(0);
        let interrupt = async || {
            // Once all that the gate lets through is asked for.
            while gate.available_permits() > 0 {
                tokio::task::yield_now().await;
            }
            interrupts.set(interrupts.get() + 1);
        };
        let outcome = each(&ids(2000), one, |_| {}, interrupt).await;
        assert_eq!(interrupts.get(), 2, "the second one ends the wait");
        let failure = outcome.account("released", 2000).unwrap_err();
        assert_eq!((failure.exit, failure.message.as_str()), (Exit::Program(130), "interrupted"));
        assert_eq!(failure.details[0], "released 40 of 2000; 1944 were left as they are");
        assert!(failure.details[1].starts_with("not known whether it was done: 40, 41, 42"));
        assert!(failure.details[1].ends_with("and 8 more"), "{}", failure.details[1]);
    }
}
