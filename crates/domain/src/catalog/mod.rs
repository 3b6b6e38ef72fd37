//! The catalog: products, images, and the SSH keys for guests.

mod image;
mod sku;
mod ssh_key;

pub use image::{Image, NewImage, create_image, delete_image};
pub use sku::{Product, Sku, SkuChange, change_sku, create_sku};
pub use ssh_key::{MAX_KEYS_PER_PROJECT, SshKey, add_ssh_key, delete_ssh_key};
