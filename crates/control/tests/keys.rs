//! What a key can create: never more than its own rights, and nothing that outlives it.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::TestServer;
use common::looking::refused;
use gpuaas_api::Client;
use gpuaas_api::dto::{
    ApiKeyCreate, ApiKeyCreated, ApiTokenCreate, MemberAdd, MemberChange, OrganizationCreate, PageQuery, ProjectCreate,
    ServiceAccountCreate, UserCreate, WebhookCreate,
};
use gpuaas_contract::access::{MemberRole, PlatformRole, ProjectRole};

const HOUR: u64 = 3600;

struct Tenant {
    project: String,
    organization: String,
    account: String,
}

impl Tenant {
    async fn new(server: &TestServer) -> Self {
        let client = server.client();
        let wanted = OrganizationCreate { name: "lab".to_owned(), ..Default::default() };
        let organization = client.organization_create(&wanted, None).await.unwrap().id.to_string();
        let wanted = ProjectCreate { name: "vision".to_owned(), ..Default::default() };
        let project = client.project_create(&organization, &wanted, None).await.unwrap().id.to_string();
        let wanted = ServiceAccountCreate { name: "root".to_owned(), role: Some(ProjectRole::Owner), ..Default::default() };
        let account = client.service_account_create(&project, &wanted, None).await.unwrap().id.to_string();
        Self { project, organization, account }
    }

    async fn key(&self, client: &Client, scopes: Option<&[&str]>, life_seconds: Option<u64>) -> ApiKeyCreated {
        self.try_key(client, scopes, life_seconds).await.unwrap()
    }

    async fn try_key(
        &self,
        client: &Client,
        scopes: Option<&[&str]>,
        life_seconds: Option<u64>,
    ) -> Result<ApiKeyCreated, gpuaas_api::ClientError> {
        let scopes = scopes.map(|scopes| scopes.iter().map(|scope| (*scope).to_owned()).collect());
        let wanted = ApiKeyCreate { name: "k".to_owned(), scopes, life_seconds };
        client.api_key_create(&self.project, &self.account, &wanted, None).await
    }
}

fn person(role: &str) -> MemberAdd {
    MemberAdd { email: Some("mallory@example.org".to_owned()), service_account_id: None, role: role.parse().unwrap() }
}

common::on_both_stores! {
    async fn a_key_makes_only_keys_within_its_own_scopes_and_life(server: TestServer) {
        let tenant = Tenant::new(&server).await;
        let own = ["key.*", "allocation.*", "*.read"];
        let parent = tenant.key(&server.client(), Some(&own), Some(HOUR)).await;
        let with_it = server.client_with(Some(&parent.secret));
        for wider in [&["*"][..], &["webhook.manage"], &["allocation.read", "member.*"]] {
            assert_eq!(refused(tenant.try_key(&with_it, Some(wider), Some(60)).await), "key_scopes_exceed_own", "{wider:?}");
        }
        assert_eq!(refused(tenant.try_key(&with_it, Some(&["*.read"]), Some(2 * HOUR)).await), "key_life_exceeds_own");
        // Values that are left out are inherited.
        let child = tenant.key(&with_it, None, None).await.key;
        assert_eq!((child.scopes.unwrap(), child.expires_at), (own.map(str::to_owned).to_vec(), parent.key.expires_at));
        assert_eq!(child.parent_id, Some(parent.key.id));
        let narrow = tenant.key(&with_it, Some(&["allocation.read", "key.manage"]), Some(60)).await;
        let with_narrow = server.client_with(Some(&narrow.secret));
        assert_eq!(refused(tenant.try_key(&with_narrow, Some(&["allocation.*"]), None).await), "key_scopes_exceed_own");
        assert!(tenant.key(&with_narrow, None, None).await.key.expires_at <= narrow.key.expires_at);
    }

    async fn a_key_counts_only_as_long_as_the_one_it_was_made_with(server: TestServer) {
        let tenant = Tenant::new(&server).await;
        let admin = server.client();
        let first = tenant.key(&admin, None, None).await;
        let second = tenant.key(&server.client_with(Some(&first.secret)), None, None).await;
        let third = tenant.key(&server.client_with(Some(&second.secret)), None, None).await;
        // The admin's token, and three keys.
        let last = server.client_with(Some(&third.secret));
        assert_eq!(refused(tenant.try_key(&last, None, None).await), "key_chain_too_long");
        last.project(&tenant.project).await.unwrap();
        admin.api_key_revoke(&tenant.project, &tenant.account, &first.key.id.to_string()).await.unwrap();
        for secret in [&second.secret, &third.secret] {
            assert_eq!(refused(server.client_with(Some(secret)).project(&tenant.project).await), "token_invalid");
        }
        // A key that created a key of another account ends it with its own account.
        let wanted = ServiceAccountCreate { name: "other".to_owned(), role: Some(ProjectRole::Viewer), ..Default::default() };
        let maker = tenant.key(&admin, None, None).await;
        let made_by = server.client_with(Some(&maker.secret));
        let other = made_by.service_account_create(&tenant.project, &wanted, None).await.unwrap().id.to_string();
        let wanted = ApiKeyCreate { name: "k".to_owned(), scopes: None, life_seconds: None };
        let child = made_by.api_key_create(&tenant.project, &other, &wanted, None).await.unwrap();
        let with_child = server.client_with(Some(&child.secret));
        with_child.project(&tenant.project).await.unwrap();
        admin.service_account_delete(&tenant.project, &tenant.account).await.unwrap();
        assert_eq!(refused(with_child.project(&tenant.project).await), "token_invalid");
    }

    async fn a_key_gives_no_role_beyond_itself(server: TestServer) {
        let tenant = Tenant::new(&server).await;
        let admin = server.client();
        let scoped = tenant.key(&admin, Some(&["member.*", "key.*", "webhook.manage"]), None).await;
        let scoped = server.client_with(Some(&scoped.secret));
        assert_eq!(refused(scoped.project_member_add(&tenant.project, &person("owner"), None).await), "role_exceeds_own");
        assert_eq!(refused(scoped.project_member_add(&tenant.project, &person("viewer"), None).await), "role_exceeds_own");
        let account = |role: &str| ServiceAccountCreate { name: "sa".to_owned(), role: Some(role.parse().unwrap()), ..Default::default() };
        assert_eq!(refused(scoped.service_account_create(&tenant.project, &account("owner"), None).await), "role_exceeds_own");
        // Events go to a webhook: a caller who may not read them may not have them sent.
        let hook = WebhookCreate { url: "https://hooks.example.com/x".to_owned(), ..WebhookCreate::default() };
        assert_eq!(refused(scoped.webhook_create(&tenant.project, &hook, None).await), "webhook_exceeds_own");
        let reader = tenant.key(&admin, Some(&["member.*", "*.read"]), None).await;
        let reader = server.client_with(Some(&reader.secret));
        let viewer = reader.project_member_add(&tenant.project, &person("viewer"), None).await.unwrap();
        let raise = MemberChange { role: MemberRole::Project(ProjectRole::Member) };
        let raised = reader.project_member_change(&tenant.project, &viewer.id.to_string(), &raise, None).await;
        assert_eq!(refused(raised), "role_exceeds_own");

        // A role has no end: a key with an expiry can create accounts, whose keys expire with it, but cannot give others a role.
        let brief = tenant.key(&admin, None, Some(HOUR)).await;
        let brief = server.client_with(Some(&brief.secret));
        assert_eq!(refused(brief.project_member_add(&tenant.project, &person("member"), None).await), "role_outlives_key");
        let raised = brief.project_member_change(&tenant.project, &viewer.id.to_string(), &raise, None).await;
        assert_eq!(refused(raised), "role_outlives_key");
        brief.service_account_create(&tenant.project, &account("owner"), None).await.unwrap();
        // Removing is not giving.
        brief.project_member_remove(&tenant.project, &viewer.id.to_string(), None).await.unwrap();
        assert_eq!(brief.project_members(&tenant.project, &PageQuery::default()).await.unwrap().items.len(), 2);
    }

    async fn a_platform_token_makes_nothing_that_outlives_it(server: TestServer) {
        let tenant = Tenant::new(&server).await;
        let wanted = ApiTokenCreate { name: "brief".to_owned(), role: PlatformRole::Admin, life_seconds: Some(HOUR) };
        let brief = server.client().api_token_create(&wanted, None).await.unwrap();
        let with_it = server.client_with(Some(&brief.token));
        let longer = ApiTokenCreate { life_seconds: Some(2 * HOUR), ..wanted.clone() };
        assert_eq!(refused(with_it.api_token_create(&longer, None).await), "key_life_exceeds_own");
        let child = with_it.api_token_create(&ApiTokenCreate { life_seconds: None, ..wanted }, None).await.unwrap();
        assert_eq!((child.api_token.expires_at, child.api_token.parent_id), (brief.api_token.expires_at, Some(brief.api_token.id)));
        assert!(tenant.key(&with_it, None, None).await.key.expires_at <= brief.api_token.expires_at);
        assert_eq!(refused(with_it.platform_member_add(&person("admin"), None).await), "role_outlives_key");
        let owner = Some("mallory@example.org".to_owned());
        let project = ProjectCreate { name: "p".to_owned(), owner_email: owner.clone(), ..Default::default() };
        assert_eq!(refused(with_it.project_create(&tenant.organization, &project, None).await), "role_outlives_key");
        let organization = OrganizationCreate { name: "o".to_owned(), owner_email: owner, ..Default::default() };
        assert_eq!(refused(with_it.organization_create(&organization, None).await), "role_outlives_key");
        let user = UserCreate { email: "mallory@example.org".to_owned(), ..UserCreate::default() };
        assert_eq!(refused(with_it.user_create(&user, None).await), "password_outlives_key");
        // Revoking the token ends everything that was created with it.
        server.client().api_token_revoke(&brief.api_token.id.to_string()).await.unwrap();
        assert_eq!(refused(server.client_with(Some(&child.token)).whoami().await), "token_invalid");
    }
}
