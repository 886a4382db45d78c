//! Panics of the tasks of a simulation: it runs on one thread, so whatever panics on that thread belongs to it.

use std::{cell::RefCell, sync::Once};

thread_local! {
    static FIRST: RefCell<Option<String>> = const { RefCell::new(None) };
}

static HOOK: Once = Once::new();

/// Notes the first panic on this thread from now on. The usual report on standard error stays.
pub(super) fn watch() {
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            FIRST.with_borrow_mut(|first| {
                first.get_or_insert_with(|| info.to_string());
            });
            usual(info);
        }));
    });
    FIRST.take();
}

/// The first panic so far.
pub(super) fn first() -> Option<String> {
    FIRST.with_borrow(Clone::clone)
}

/// The first panic so far, which is forgotten.
pub(super) fn take() -> Option<String> {
    FIRST.take()
}

#[cfg(test)]
mod tests {
    use super::super::run::{Failure, in_simulated_time};

    #[test]
    fn a_panic_in_a_task_that_nobody_joins_fails_the_run() {
        let result: Result<(), Failure> = in_simulated_time(1, async {
            tokio::spawn(async { panic!("unseen") });
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            Ok(())
        });
        assert!(matches!(result, Err(Failure::Panicked(what)) if what.contains("unseen")));
    }

    #[test]
    fn the_panic_of_one_run_does_not_fail_the_next() {
        let panics = in_simulated_time(1, async { panic!("once") });
        assert!(matches!(panics, Err::<(), _>(Failure::Panicked(what)) if what.contains("once")));
        assert!(in_simulated_time(1, async { Ok(()) }).is_ok());
    }
}
