//! The beginning of one month, a scene with and without its bug, and the figures of the generator.

use crate::bugs::Bug;
use crate::run::{Policy, run_until};
use crate::scenes::scene_of;
use crate::span::DAY;
use crate::work::{Class, Month};

/// Without optimisation a day takes a second or two, and the whole month minutes: `make month` runs it.
const DAYS: u64 = 3;

#[test]
fn nothing_that_must_not_happens_while_people_begin() {
    let month = Month::new(1);
    let record = run_until(DAYS * DAY, &month, Policy::Fleet, None);
    assert_eq!(record.violations, [""; 0]);
    let sent = month.work.iter().filter(|work| work.sent < DAYS * DAY).count();
    let started = record.jobs.iter().filter(|job| job.started().is_some()).count();
    assert!(sent > 50 && started * 10 > sent * 9, "{started} of {sent}");
}

/// `make sim-bugs` runs both scenes.
#[test]
fn a_victim_by_age_is_found() {
    let bug = Bug::VictimByAge;
    let (sound, planted) = (scene_of(bug, None), scene_of(bug, Some(bug)));
    assert!(sound.holds && sound.violations == 0, "{sound:?}");
    assert!(!planted.holds, "{planted:?}");
}

#[test]
fn the_same_seed_is_the_same_month_with_the_figures_of_the_issue() {
    let month = Month::new(3);
    assert_eq!(format!("{:?}", month.work), format!("{:?}", Month::new(3).work));
    assert_eq!((month.lab.gpus(), month.lab.machines.len(), month.lab.people.len()), (64, 10, 40));
    let of = |is: &dyn Fn(&crate::work::Work) -> bool| {
        month.work.iter().filter(|work| is(work)).count() * 100 / month.work.len()
    };
    assert!((56..=64).contains(&of(&|work| work.gpus == 1)));
    assert!((16..=24).contains(&of(&|work| work.class == Class::Scavenger)));
    assert!((16..=24).contains(&of(&|work| work.saves.is_none())));
    assert!((3..=7).contains(&of(&|work| work.runs > 48 * 3_600_000)));
    assert!((45..=55).contains(&of(&|work| work.limit < 4 * work.runs)));
}
