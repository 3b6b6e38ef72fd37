//! One method per endpoint: organizations, projects and what belongs to them.

use reqwest::Method;

use super::{Client, ClientError};
use crate::dto::{
    ApiKey, ApiKeyCreate, ApiKeyCreated, CatalogItem, Image, ImageCreate, ImageListQuery, Limits, Member, MemberAdd,
    MemberChange, Organization, OrganizationChange, OrganizationCreate, OrganizationListQuery, OwnPassword, Page, PageQuery,
    Project, ProjectChange, ProjectCreate, ProjectListQuery, Quota, ServiceAccount, ServiceAccountCreate, SshKey, SshKeyCreate,
    User, WhoAmI,
};
use crate::routes;

impl Client {
    /// Who the caller is.
    pub async fn whoami(&self) -> Result<WhoAmI, ClientError> {
        self.get(routes::WHOAMI, &[]).await
    }

    /// One page of what is on offer.
    pub async fn catalog(&self, query: &PageQuery) -> Result<Page<CatalogItem>, ClientError> {
        self.list(routes::CATALOG, &[], query).await
    }

    /// One page of organizations.
    pub async fn organizations(&self, query: &OrganizationListQuery) -> Result<Page<Organization>, ClientError> {
        self.list(routes::ORGANIZATIONS, &[], query).await
    }

    /// Make an organization. With an idempotency key, asking twice makes one, here and below.
    pub async fn organization_create(
        &self,
        create: &OrganizationCreate,
        idempotency_key: Option<&str>,
    ) -> Result<Organization, ClientError> {
        self.post_once(routes::ORGANIZATIONS, &[], create, idempotency_key).await
    }

    /// One organization.
    pub async fn organization(&self, organization: &str) -> Result<Organization, ClientError> {
        self.get(routes::ORGANIZATION, &[organization]).await
    }

    /// Change one's own password.
    pub async fn own_password_set(&self, password: &OwnPassword) -> Result<User, ClientError> {
        self.post(routes::OWN_PASSWORD, &[], password).await
    }

    /// Delete an organization that has no projects.
    pub async fn organization_delete(&self, organization: &str, if_match: Option<&str>) -> Result<Organization, ClientError> {
        self.delete_if(routes::ORGANIZATION, &[organization], if_match).await
    }

    /// Change an organization. With `if_match`, the `etag` of what was seen, only if it is still that, here and below.
    pub async fn organization_change(
        &self,
        organization: &str,
        change: &OrganizationChange,
        if_match: Option<&str>,
    ) -> Result<Organization, ClientError> {
        self.change(Method::PATCH, (routes::ORGANIZATION, &[organization]), change, if_match).await
    }

    /// One page of who has which role in an organization.
    pub async fn organization_members(&self, organization: &str, query: &PageQuery) -> Result<Page<Member>, ClientError> {
        self.list(routes::ORGANIZATION_MEMBERS, &[organization], query).await
    }

    /// Give somebody a role in an organization.
    pub async fn organization_member_add(
        &self,
        organization: &str,
        add: &MemberAdd,
        idempotency_key: Option<&str>,
    ) -> Result<Member, ClientError> {
        self.post_once(routes::ORGANIZATION_MEMBERS, &[organization], add, idempotency_key).await
    }

    /// Give somebody another role in an organization.
    pub async fn organization_member_change(
        &self,
        organization: &str,
        member: &str,
        change: &MemberChange,
        if_match: Option<&str>,
    ) -> Result<Member, ClientError> {
        self.change(Method::PATCH, (routes::ORGANIZATION_MEMBER, &[organization, member]), change, if_match).await
    }

    /// Take somebody's role in an organization away.
    pub async fn organization_member_remove(
        &self,
        organization: &str,
        member: &str,
        if_match: Option<&str>,
    ) -> Result<Member, ClientError> {
        self.delete_if(routes::ORGANIZATION_MEMBER, &[organization, member], if_match).await
    }

    /// One page of an organization's projects.
    pub async fn organization_projects(&self, organization: &str, query: &PageQuery) -> Result<Page<Project>, ClientError> {
        self.list(routes::ORGANIZATION_PROJECTS, &[organization], query).await
    }

    /// Make a project.
    pub async fn project_create(
        &self,
        organization: &str,
        create: &ProjectCreate,
        idempotency_key: Option<&str>,
    ) -> Result<Project, ClientError> {
        self.post_once(routes::ORGANIZATION_PROJECTS, &[organization], create, idempotency_key).await
    }

    /// How much an organization may have and has.
    pub async fn organization_quota(&self, organization: &str) -> Result<Quota, ClientError> {
        self.get(routes::ORGANIZATION_QUOTA, &[organization]).await
    }

    /// Set how much an organization may have.
    pub async fn organization_quota_set(
        &self,
        organization: &str,
        limits: &Limits,
        if_match: Option<&str>,
    ) -> Result<Quota, ClientError> {
        self.change(Method::PUT, (routes::ORGANIZATION_QUOTA, &[organization]), limits, if_match).await
    }

    /// One page of projects.
    pub async fn projects(&self, query: &ProjectListQuery) -> Result<Page<Project>, ClientError> {
        self.list(routes::PROJECTS, &[], query).await
    }

    /// One project.
    pub async fn project(&self, project: &str) -> Result<Project, ClientError> {
        self.get(routes::PROJECT, &[project]).await
    }

    /// Change a project.
    pub async fn project_change(
        &self,
        project: &str,
        change: &ProjectChange,
        if_match: Option<&str>,
    ) -> Result<Project, ClientError> {
        self.change(Method::PATCH, (routes::PROJECT, &[project]), change, if_match).await
    }

    /// Delete a project that has no allocations any more.
    pub async fn project_delete(&self, project: &str, if_match: Option<&str>) -> Result<Project, ClientError> {
        self.delete_if(routes::PROJECT, &[project], if_match).await
    }

    /// One page of who has which role in a project.
    pub async fn project_members(&self, project: &str, query: &PageQuery) -> Result<Page<Member>, ClientError> {
        self.list(routes::PROJECT_MEMBERS, &[project], query).await
    }

    /// Give somebody a role in a project.
    pub async fn project_member_add(
        &self,
        project: &str,
        add: &MemberAdd,
        idempotency_key: Option<&str>,
    ) -> Result<Member, ClientError> {
        self.post_once(routes::PROJECT_MEMBERS, &[project], add, idempotency_key).await
    }

    /// Give somebody another role in a project.
    pub async fn project_member_change(
        &self,
        project: &str,
        member: &str,
        change: &MemberChange,
        if_match: Option<&str>,
    ) -> Result<Member, ClientError> {
        self.change(Method::PATCH, (routes::PROJECT_MEMBER, &[project, member]), change, if_match).await
    }

    /// Take somebody's role in a project away.
    pub async fn project_member_remove(
        &self,
        project: &str,
        member: &str,
        if_match: Option<&str>,
    ) -> Result<Member, ClientError> {
        self.delete_if(routes::PROJECT_MEMBER, &[project, member], if_match).await
    }

    /// How much a project may have and has.
    pub async fn project_quota(&self, project: &str) -> Result<Quota, ClientError> {
        self.get(routes::PROJECT_QUOTA, &[project]).await
    }

    /// Set how much a project may have.
    pub async fn project_quota_set(&self, project: &str, limits: &Limits, if_match: Option<&str>) -> Result<Quota, ClientError> {
        self.change(Method::PUT, (routes::PROJECT_QUOTA, &[project]), limits, if_match).await
    }

    /// One page of service accounts.
    pub async fn service_accounts(&self, project: &str, query: &PageQuery) -> Result<Page<ServiceAccount>, ClientError> {
        self.list(routes::SERVICE_ACCOUNTS, &[project], query).await
    }

    /// Make a service account.
    pub async fn service_account_create(
        &self,
        project: &str,
        create: &ServiceAccountCreate,
        idempotency_key: Option<&str>,
    ) -> Result<ServiceAccount, ClientError> {
        self.post_once(routes::SERVICE_ACCOUNTS, &[project], create, idempotency_key).await
    }

    /// Delete a service account and every key it has.
    pub async fn service_account_delete(&self, project: &str, service_account: &str) -> Result<ServiceAccount, ClientError> {
        self.delete(routes::SERVICE_ACCOUNT, &[project, service_account]).await
    }

    /// One page of a service account's keys.
    pub async fn api_keys(&self, project: &str, service_account: &str, query: &PageQuery) -> Result<Page<ApiKey>, ClientError> {
        self.list(routes::API_KEYS, &[project, service_account], query).await
    }

    /// Make a key for a service account.
    pub async fn api_key_create(
        &self,
        project: &str,
        service_account: &str,
        create: &ApiKeyCreate,
        idempotency_key: Option<&str>,
    ) -> Result<ApiKeyCreated, ClientError> {
        self.post_once(routes::API_KEYS, &[project, service_account], create, idempotency_key).await
    }

    /// Take a key of a service account back.
    pub async fn api_key_revoke(&self, project: &str, service_account: &str, key: &str) -> Result<ApiKey, ClientError> {
        self.delete(routes::API_KEY, &[project, service_account, key]).await
    }

    /// One page of SSH keys.
    pub async fn ssh_keys(&self, project: &str, query: &PageQuery) -> Result<Page<SshKey>, ClientError> {
        self.list(routes::SSH_KEYS, &[project], query).await
    }

    /// Store an SSH key.
    pub async fn ssh_key_add(
        &self,
        project: &str,
        create: &SshKeyCreate,
        idempotency_key: Option<&str>,
    ) -> Result<SshKey, ClientError> {
        self.post_once(routes::SSH_KEYS, &[project], create, idempotency_key).await
    }

    /// Delete an SSH key.
    pub async fn ssh_key_delete(&self, project: &str, ssh_key: &str) -> Result<SshKey, ClientError> {
        self.delete(routes::SSH_KEY, &[project, ssh_key]).await
    }

    /// One page of the images a project can use.
    pub async fn project_images(&self, project: &str, query: &ImageListQuery) -> Result<Page<Image>, ClientError> {
        self.list(routes::PROJECT_IMAGES, &[project], query).await
    }

    /// Make an image of the project's organization.
    pub async fn project_image_create(
        &self,
        project: &str,
        create: &ImageCreate,
        idempotency_key: Option<&str>,
    ) -> Result<Image, ClientError> {
        self.post_once(routes::PROJECT_IMAGES, &[project], create, idempotency_key).await
    }

    /// An image that a project can use.
    pub async fn project_image(&self, project: &str, image: &str) -> Result<Image, ClientError> {
        self.get(routes::PROJECT_IMAGE, &[project, image]).await
    }

    /// Delete an image of the project's organization.
    pub async fn project_image_delete(&self, project: &str, image: &str) -> Result<Image, ClientError> {
        self.delete(routes::PROJECT_IMAGE, &[project, image]).await
    }
}
