//! Judges preemptions: nobody leaves before the time that their class guarantees or without a save of their own, only for
//! work of a higher class, and what is freed goes to nobody else.
//!
//! It restates the rules, and looks at what came of an entry, not at how it was chosen.

use fleet_core::Fsm;
use fleet_core::event::Event;
use fleet_core::id::JobId;
use fleet_core::job::Job;
use fleet_core::name::ClassName;
use fleet_core::preemption::PreemptionEvent;
use fleet_core::time::Millis;

/// Said of the events of an entry, with the state after it. True where somebody was asked to leave.
pub(crate) fn judge(events: &[Event], fsm: &Fsm) -> Result<bool, String> {
    let mut ordered = false;
    for event in events {
        match event {
            Event::Preemption(event) => match event.as_ref() {
                PreemptionEvent::Ordered { job, victims, .. } => {
                    ordered = true;
                    victims.iter().try_for_each(|victim| may_leave(fsm, job, victim))?;
                }
                PreemptionEvent::Reserved { jobs, within, .. } => {
                    jobs.iter().try_for_each(|job| may_be_reserved_over(fsm, job, *within))?;
                }
                _ => {}
            },
            Event::JobPlaced { job, gpus, .. } => {
                let Some(placed) = fsm.job(job) else { continue };
                let until = fsm.now() + placed.time_left() + placed.spec.stop_grace;
                let others = fsm.preemptions().iter().filter(|(of, _)| *of != job);
                for (of, place) in others {
                    let taken = gpus.iter().any(|gpu| place.gpus.contains(gpu));
                    if taken && until > place.starts_at {
                        return Err(format!("{job} took what is freed for {of}"));
                    }
                }
            }
            _ => {}
        }
    }
    Ok(ordered)
}

/// A reservation begins on its GPUs in that time.
fn may_be_reserved_over(fsm: &Fsm, job: &JobId, within: Millis) -> Result<(), String> {
    let Some(job) = fsm.job(job) else { return Ok(()) };
    let class = |name| fsm.class(name).ok_or("a class is gone".to_owned());
    let (its, normal) = (class(&job.spec.class)?, class(&ClassName::normal())?);
    if its.priority >= normal.priority && job.spec.time_limit_given {
        return Err(format!("{} leaves for a reservation, and is of no lower class", job.id));
    }
    let began = job.allocation().and_then(|id| fsm.allocation(id)?.started_at);
    let Some(began) = began else { return Err(format!("{} does not run", job.id)) };
    let has = (fsm.now() + within).since(began);
    if has < its.min_run {
        return Err(format!("{} has {has} in all, and {} for sure", job.id, its.min_run));
    }
    Ok(())
}

fn may_leave(fsm: &Fsm, job: &JobId, victim: &JobId) -> Result<(), String> {
    let (Some(job), Some(of)) = (fsm.job(job), fsm.job(victim)) else { return Ok(()) };
    let class = |job: &Job| fsm.class(&job.spec.class).ok_or("a class is gone".to_owned());
    let (mine, its) = (class(job)?, class(of)?);
    let names = format!("{} leaves for {}", of.id, job.id);
    let open = !of.spec.time_limit_given && of.owner != job.owner;
    if its.priority >= mine.priority && !(open && of.spec.class == job.spec.class) {
        return Err(format!("{names}, which is of no higher class"));
    }
    let attempt = of.allocation().and_then(|id| fsm.allocation(id));
    let Some((attempt, began)) = attempt.and_then(|a| Some((a, a.started_at?))) else {
        return Err(format!("{names}, and does not run"));
    };
    let ran = fsm.now().since(began);
    if ran < its.min_run {
        return Err(format!("{names} after {ran}, and has {} for sure", its.min_run));
    }
    let saved = of.checkpoints().any(|one| one.allocation == attempt.id && !one.is_torn());
    if of.spec.checkpoint.is_some() && !saved {
        return Err(format!("{names}, and has saved nothing of its own"));
    }
    Ok(())
}
