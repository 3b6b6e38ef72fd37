//! Every step of an allocation's run, taken twice and failing in every way.

mod support;

#[path = "support/acts.rs"]
mod acts;
#[path = "support/books.rs"]
mod books;
#[path = "support/hosts.rs"]
mod hosts;
#[path = "support/rules.rs"]
mod rules;
#[path = "support/site.rs"]
mod site;

use std::time::Duration;

use acts::nothing_is_left;
use books::{Books, Conflict};
use gpuaas_contract::id::AllocationId;
use gpuaas_contract::task::slice_vm_power::Action;
use gpuaas_domain::allocation::commands::Request;
use gpuaas_domain::allocation::{Allocation, AllocationState, Next, Step};
use gpuaas_domain::catalog::Product;
use hosts::End;
use site::wanted;

const PRODUCTS: [Product; 2] = [Product::Slice { slots: 2 }, Product::BareMetal];
/// More than any run needs: three hosts, three releases on each, and the waits between them.
const BOUND: usize = 100;

/// When its tenant gives it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Never,
    BeforeTheEnd,
    AfterTheEnd,
}

/// A run that is about to take this step; `None` if a product never takes it.
fn about_to(step: Step, product: Product) -> Option<(Books, AllocationId)> {
    let mut books = match product {
        Product::Slice { .. } => Books::sliced(&[2, 2, 2, 2]),
        Product::BareMetal => Books::whole(4),
    };
    let request = Request { wait: Duration::from_secs(3600), ..wanted(product) };
    let id = books.request(&request).expect("there is no limit");
    match step {
        Step::Place => {}
        Step::AwaitProvision => drop(books.advance(id)),
        Step::Serve => active(&mut books, id),
        Step::AwaitPower if product == Product::BareMetal => return None,
        Step::AwaitPower => {
            active(&mut books, id);
            books.power(id, Action::Stop).expect("is active");
            books.advance(id);
        }
        Step::Release => {
            active(&mut books, id);
            books.release(id);
            books.advance(id);
        }
        Step::AwaitRelease => {
            active(&mut books, id);
            books.release(id);
            books.advance(id);
            books.advance(id);
        }
        Step::Done => {
            books.release(id);
            books.advance(id);
        }
    }
    assert_eq!(books.allocations[&id].step, step);
    rules::check(&books);
    Some((books, id))
}

fn active(books: &mut Books, id: AllocationId) {
    books.advance(id);
    let task = books.task_of(id);
    books.end(task, End::Succeeded);
    books.advance(id);
    assert_eq!(books.allocations[&id].state, AllocationState::Active);
}

/// Takes a step. One that changes nothing says when it may have something to do, and never that it has now.
fn advance(books: &mut Books, id: AllocationId) -> Next {
    let advance = books.advance(id);
    rules::check(books);
    let spins = match advance.next {
        Next::Now => true,
        Next::At(at) => at <= books.now,
        Next::Done => false,
    };
    let run = &books.allocations[&id];
    assert!(!(advance.decision.is_empty() && spins), "{:?} spins at {:?}", run.state, run.step);
    assert_eq!(advance.next == Next::Done, run.state.over(), "{:?}", run.state);
    advance.next
}

/// Drives a run until nothing happens by itself any more; every order on the way ends like this.
fn drive(books: &mut Books, id: AllocationId, ends: End) -> AllocationState {
    for _ in 0..BOUND {
        let next = advance(books, id);
        let run = &books.allocations[&id];
        let open = books.open_tasks_of(id);
        match next {
            Next::Done => return run.state,
            Next::Now => {}
            Next::At(_) if !open.is_empty() => open.into_iter().for_each(|task| books.end(task, ends)),
            // What is left is somebody's word.
            Next::At(_) if rests(run) => return run.state,
            Next::At(at) => books.now = books.now.max(at),
        }
    }
    panic!("it does not come to an end: {:#?}", books.allocations[&id]);
}

fn rests(run: &Allocation) -> bool {
    let nothing_wanted = run.release_wish.is_none() && run.power_wish.is_none();
    match run.state {
        AllocationState::Active => nothing_wanted,
        AllocationState::ReleaseBlocked => run.due_at.is_none(),
        AllocationState::Requested
        | AllocationState::Placing
        | AllocationState::Provisioning
        | AllocationState::Releasing
        | AllocationState::Released
        | AllocationState::Failed => false,
    }
}

/// An operator cleans up whatever is blocked.
fn force(books: &mut Books, id: AllocationId) {
    let slot = books.slots_of(id).first().map(|slot| slot.id);
    let machine = books.machines.values().find(|machine| machine.allocation_id == Some(id)).map(|machine| machine.node_id);
    let task = match (slot, machine) {
        (Some(slot), _) => books.force_cleanup(slot),
        (None, Some(node)) => books.force_machine(node),
        (None, None) => panic!("it is blocked and has nothing"),
    };
    books.end(task.expect("it is blocked"), End::Succeeded);
}

/// Takes the step that is due twice on the same picture, and once on a picture that is old by then.
fn twice(books: &mut Books, id: AllocationId, shown: &str) {
    let (run, world) = (books.allocations[&id].clone(), books.world(&books.allocations[&id]));
    let (first, second) = (books.decide_on(&run, &world), books.decide_on(&run, &world));
    assert_eq!(first.decision.is_empty(), second.decision.is_empty(), "{shown}");
    assert_eq!((first.allocation.state, first.allocation.step), (second.allocation.state, second.allocation.step), "{shown}");
    assert_eq!(first.next, second.next, "{shown}");
    books.commit(first.decision).expect("nobody else writes");
    let after = books.clone();
    for late in [second, books.decide_on(&run, &world)] {
        let empty = late.decision.is_empty();
        let written = books.commit(late.decision);
        assert_eq!(written, if empty { Ok(()) } else { Err(Conflict) }, "{shown}");
    }
    assert_eq!(books.allocations, after.allocations, "{shown}");
    assert_eq!((books.tasks.len(), books.events.len()), (after.tasks.len(), after.events.len()), "{shown}");
    rules::check(books);
}

#[test]
fn every_step_that_is_taken_twice_is_taken_once() {
    for product in PRODUCTS {
        for step in Step::ALL {
            for ends in End::ALL.map(Some).into_iter().chain([None]) {
                for wish in [Wish::Never, Wish::BeforeTheEnd, Wish::AfterTheEnd] {
                    let Some((mut books, id)) = about_to(step, product) else { continue };
                    let shown = format!("{product:?} {step:?} {ends:?} {wish:?}");
                    unfold(&mut books, id, ends, wish);
                    for _ in 0..4 {
                        twice(&mut books, id, &shown);
                        if let Next::At(at) = books.decide(id).next {
                            books.now = books.now.max(at);
                        }
                    }
                    // And it goes on from there as if nothing had been.
                    drive(&mut books, id, End::Succeeded);
                }
            }
        }
    }
}

/// The order of this step ends, and its tenant gives it back before that, after it or not at all.
fn unfold(books: &mut Books, id: AllocationId, ends: Option<End>, wish: Wish) {
    if wish == Wish::BeforeTheEnd {
        books.release(id);
        // What is to be stopped is told so.
        books.advance(id);
    }
    if let Some(ends) = ends {
        books.open_tasks_of(id).into_iter().for_each(|task| books.end(task, ends));
    }
    if wish == Wish::AfterTheEnd {
        books.release(id);
    }
}

#[test]
fn every_step_comes_to_an_end_however_its_orders_end() {
    for product in PRODUCTS {
        for step in Step::ALL {
            for ends in End::ALL {
                for wish in [Wish::Never, Wish::BeforeTheEnd, Wish::AfterTheEnd] {
                    for then in [End::Succeeded, ends] {
                        let Some((mut books, id)) = about_to(step, product) else { continue };
                        let shown = format!("{product:?} {step:?} {ends:?} then {then:?}, given back {wish:?}");
                        unfold(&mut books, id, Some(ends), wish);
                        let mut state = drive(&mut books, id, then);
                        if state == AllocationState::Active {
                            assert_eq!(wish, Wish::Never, "{shown}: it was given back");
                            books.release(id);
                            state = drive(&mut books, id, then);
                        }
                        if state == AllocationState::ReleaseBlocked {
                            assert_ne!(then, End::Succeeded, "{shown}: hosts that clean up need no operator");
                            force(&mut books, id);
                            state = drive(&mut books, id, End::Succeeded);
                        }
                        let run = &books.allocations[&id];
                        assert!(state.over(), "{shown}: {run:#?}");
                        assert_eq!(state == AllocationState::Released, run.release_wish.is_some(), "{shown}");
                        assert_eq!(state == AllocationState::Failed, run.trouble.is_some(), "{shown}");
                        nothing_is_left(&books);
                    }
                }
            }
        }
    }
}

#[test]
fn a_host_that_answers_after_it_was_given_up_disturbs_nobody() {
    for product in PRODUCTS {
        for step in [Step::AwaitProvision, Step::AwaitPower, Step::AwaitRelease] {
            for late in End::ALL {
                for turns in 0..6 {
                    let Some((mut books, id)) = about_to(step, product) else { continue };
                    let lost = books.task_of(id);
                    let order = books.order(lost);
                    let Some(said) = late.said(&order) else { continue };
                    books.end(lost, End::NoWord);
                    // So many steps later, in which everybody else answers at once.
                    for _ in 0..turns {
                        advance(&mut books, id);
                        books.open_tasks_of(id).into_iter().for_each(|task| books.end(task, End::Succeeded));
                        if let Next::At(at) = books.decide(id).next {
                            books.now = books.now.max(at);
                        }
                    }
                    books.receipt(lost, said);
                    if books.allocations[&id].state == AllocationState::Active {
                        advance(&mut books, id);
                        books.release(id);
                    }
                    let mut state = drive(&mut books, id, End::Succeeded);
                    if state == AllocationState::Active {
                        books.release(id);
                        state = drive(&mut books, id, End::Succeeded);
                    }
                    assert!(state.over(), "{product:?} {step:?} {late:?} after {turns} turns: {state:?}");
                    nothing_is_left(&books);
                }
            }
        }
    }
}

#[test]
fn an_operator_who_cleans_up_at_any_moment_disturbs_no_run() {
    for product in PRODUCTS {
        for ends in [End::FailedDirty, End::Interrupted, End::NoWord, End::NodeGone] {
            for moment in 0..8 {
                let (mut books, id) = about_to(Step::AwaitProvision, product).expect("every product is made");
                for _ in 0..moment {
                    advance(&mut books, id);
                    books.open_tasks_of(id).into_iter().for_each(|task| books.end(task, ends));
                    if let Next::At(at) = books.decide(id).next {
                        books.now = books.now.max(at);
                    }
                }
                if books.allocations[&id].step == Step::Release && books.open_tasks_of(id).is_empty() {
                    force(&mut books, id);
                }
                drive(&mut books, id, End::Succeeded);
                if !books.allocations[&id].state.over() {
                    books.release(id);
                    if drive(&mut books, id, End::Succeeded) == AllocationState::ReleaseBlocked {
                        force(&mut books, id);
                        drive(&mut books, id, End::Succeeded);
                    }
                }
                assert!(books.allocations[&id].state.over(), "{product:?} {ends:?} {moment}");
                nothing_is_left(&books);
            }
        }
    }
}
