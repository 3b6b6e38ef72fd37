//! One method per endpoint: the platform's people, products and images.

use reqwest::Method;

use super::{Client, ClientError};
use crate::dto::{
    Image, ImageCreate, ImageListQuery, Member, MemberAdd, MemberChange, Page, PageQuery, Reason, Sku, SkuChange, SkuCreate,
    User, UserCreate, UserCreated, UserListQuery, UserPassword, UserPasswordSet,
};
use crate::routes;

impl Client {
    /// One page of who has which role on the platform.
    pub async fn platform_members(&self, query: &PageQuery) -> Result<Page<Member>, ClientError> {
        self.list(routes::PLATFORM_MEMBERS, &[], query).await
    }

    /// Give somebody a role on the platform.
    pub async fn platform_member_add(&self, add: &MemberAdd, idempotency_key: Option<&str>) -> Result<Member, ClientError> {
        self.post_once(routes::PLATFORM_MEMBERS, &[], add, idempotency_key).await
    }

    /// Give somebody another role on the platform.
    pub async fn platform_member_change(
        &self,
        member: &str,
        change: &MemberChange,
        if_match: Option<&str>,
    ) -> Result<Member, ClientError> {
        self.change(Method::PATCH, (routes::PLATFORM_MEMBER, &[member]), change, if_match).await
    }

    /// Take somebody's role on the platform away.
    pub async fn platform_member_remove(&self, member: &str, if_match: Option<&str>) -> Result<Member, ClientError> {
        self.delete_if(routes::PLATFORM_MEMBER, &[member], if_match).await
    }

    /// One page of users.
    pub async fn users(&self, query: &UserListQuery) -> Result<Page<User>, ClientError> {
        self.list(routes::USERS, &[], query).await
    }

    /// Make a user of the built-in issuer.
    pub async fn user_create(&self, create: &UserCreate, idempotency_key: Option<&str>) -> Result<UserCreated, ClientError> {
        self.post_once(routes::USERS, &[], create, idempotency_key).await
    }

    /// Let a deactivated user sign in again.
    pub async fn user_reactivate(&self, user: &str, reason: &Reason) -> Result<User, ClientError> {
        self.post(routes::USER_REACTIVATE, &[user], reason).await
    }

    /// Keep a user from signing in.
    pub async fn user_deactivate(&self, user: &str, reason: &Reason) -> Result<User, ClientError> {
        self.post(routes::USER_DEACTIVATE, &[user], reason).await
    }

    /// A user.
    pub async fn user(&self, user: &str) -> Result<User, ClientError> {
        self.get(routes::USER, &[user]).await
    }

    /// Set a user's password.
    pub async fn user_password_set(&self, user: &str, password: &UserPassword) -> Result<UserPasswordSet, ClientError> {
        self.post(routes::USER_PASSWORD, &[user], password).await
    }

    /// One page of the platform's images.
    pub async fn images(&self, query: &ImageListQuery) -> Result<Page<Image>, ClientError> {
        self.list(routes::IMAGES, &[], query).await
    }

    /// Make an image for everybody.
    pub async fn image_create(&self, create: &ImageCreate, idempotency_key: Option<&str>) -> Result<Image, ClientError> {
        self.post_once(routes::IMAGES, &[], create, idempotency_key).await
    }

    /// Delete an image of the platform.
    pub async fn image_delete(&self, image: &str) -> Result<Image, ClientError> {
        self.delete(routes::IMAGE, &[image]).await
    }

    /// One page of all products.
    pub async fn skus(&self, query: &PageQuery) -> Result<Page<Sku>, ClientError> {
        self.list(routes::SKUS, &[], query).await
    }

    /// Make a product.
    pub async fn sku_create(&self, create: &SkuCreate, idempotency_key: Option<&str>) -> Result<Sku, ClientError> {
        self.post_once(routes::SKUS, &[], create, idempotency_key).await
    }

    /// Change a product.
    pub async fn sku_change(&self, sku: &str, change: &SkuChange, if_match: Option<&str>) -> Result<Sku, ClientError> {
        self.change(Method::PATCH, (routes::SKU, &[sku]), change, if_match).await
    }
}
