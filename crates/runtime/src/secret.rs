//! Memory for secrets that live as long as the process: never swapped, wiped when dropped.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};

/// A secret on its own memory pages, which the kernel does not swap.
///
/// If the kernel refuses to lock the pages (the limit on locked memory is used up), the secret is used anyway and a warning is
/// logged once: a control plane that does not start protects nothing. The value must wipe itself when it is dropped.
pub struct Locked<T: WipedOnDrop> {
    // Declared before the guard and therefore dropped before it: the value is wiped while its pages are still locked.
    value: Box<Pages<T>>,
    _guard: Option<region::LockGuard>,
}

/// Types whose memory is overwritten when they are dropped.
pub trait WipedOnDrop {}

impl WipedOnDrop for gpuaas_contract::key::SigningKey {}
impl<T: zeroize::Zeroize> WipedOnDrop for zeroize::Zeroizing<T> {}

/// Whole pages: locks do not nest, so a page must not be shared with another secret that may be unlocked earlier.
#[repr(align(4096))]
struct Pages<T>(T);

static WARNED: AtomicBool = AtomicBool::new(false);

impl<T: WipedOnDrop> Locked<T> {
    /// Moves a secret to its own pages.
    pub fn new(value: T) -> Self {
        let value = Box::new(Pages(value));
        let guard = region::lock(&raw const *value, size_of::<Pages<T>>());
        if let Err(error) = &guard
            && !WARNED.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                %error,
                "keys cannot be kept out of swap; raise the limit on locked memory (`LimitMEMLOCK=` in the systemd unit, `ulimit -l`) or turn swap off"
            );
        }
        Self { value, _guard: guard.ok() }
    }

    /// Returns whether the pages of the secret are locked.
    pub fn is_locked(&self) -> bool {
        self._guard.is_some()
    }
}

impl<T: WipedOnDrop> Deref for Locked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value.0
    }
}

impl<T: WipedOnDrop> std::fmt::Debug for Locked<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Locked(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zeroize::Zeroizing;

    #[test]
    fn two_secrets_never_share_a_page() {
        let (one, two) = (Locked::new(Zeroizing::new([1_u8; 32])), Locked::new(Zeroizing::new([2_u8; 32])));
        let page = |secret: &Locked<Zeroizing<[u8; 32]>>| (&raw const *secret.value).addr() / 4096;
        assert_ne!(page(&one), page(&two));
        assert_eq!((one[0], two[0]), (1, 2));
    }

    #[test]
    fn a_secret_is_never_printed() {
        let secret = Locked::new(Zeroizing::new([7_u8; 32]));
        assert_eq!(format!("{secret:?}"), "Locked(…)");
    }
}
