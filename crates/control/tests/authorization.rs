//! Who may call what: every endpoint, by every role, in their own project and in another one.
//!
//! The domain's tests check the policies against a written table. These tests check that every route asks them the right
//! question: the same action on the same resource.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;

use common::TestServer;
use gpuaas_api::dto::{
    AllocationCreate, ApiKeyCreate, ApiTokenCreate, ImageCreate, Limits, OrganizationCreate, ProductKind, ProjectCreate,
    ServiceAccountCreate, SkuCreate, WebhookCreate,
};
use gpuaas_api::endpoints::{About, ENDPOINTS, Endpoint, Method};
use gpuaas_contract::Digest;
use gpuaas_contract::id::{
    AllocationId, ApiTokenId, DeliveryId, EnrollmentId, ImageId, JoinTokenId, MaintenanceId, MembershipId, NodeId, OrgId,
    ProjectId, ServiceAccountId, SkuId, SlotId, SshKeyId, TaskId, UserId, WebhookId,
};
use gpuaas_domain::access::{Place, PlatformRole, Policies, Principal, PrincipalId, ProjectRole, Scope, Verdict};

/// Routes that need no caller. This list may only shrink.
const OPEN: [&str; 4] = ["/healthz", "/readyz", "/openapi.json", "/docs"];

/// One tenant: an organization with a project and one of each resource.
struct Tenant {
    organization: OrgId,
    project: ProjectId,
    allocation: AllocationId,
    webhook: WebhookId,
}

impl Tenant {
    async fn new(server: &TestServer, name: &str) -> Self {
        let client = server.client();
        let wanted = OrganizationCreate {
            name: name.to_owned(),
            description: String::new(),
            limits: Limits::default(),
            owner_email: None,
        };
        let organization = client.organization_create(&wanted, None).await.unwrap().id;
        let wanted = ProjectCreate {
            name: "project".to_owned(),
            description: String::new(),
            limits: Limits::default(),
            owner_email: None,
        };
        let project = client.project_create(&organization.to_string(), &wanted, None).await.unwrap().id;
        let wanted = AllocationCreate {
            name: "waits".parse().unwrap(),
            sku: "one".to_owned(),
            image: Some("ubuntu".to_owned()),
            ssh_keys: Vec::new(),
            ssh_public_keys: vec![
                "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHKEEv6ijKqyQ2vQ6nA1WbKOL3vVv1YxmgG1bbbLW2uV".parse().unwrap(),
            ],
            username: None,
            tags: BTreeMap::new(),
            lease_seconds: None,
            // There is no host: it waits for one as long as the test runs.
            wait_seconds: Some(86_400),
            spread: false,
            sudo: false,
            graceful_timeout_seconds: None,
            dry_run: false,
        };
        let allocation = client.allocation_create(&project.to_string(), &wanted, None).await.unwrap().id;
        let webhook = Self::webhook(server, project).await;
        Self { organization, project, allocation, webhook }
    }

    async fn webhook(server: &TestServer, project: ProjectId) -> WebhookId {
        // It subscribes to a kind that never occurs: nothing is sent anywhere.
        let wanted = WebhookCreate {
            url: "https://hooks.example.com/x".to_owned(),
            description: String::new(),
            kinds: vec!["allocation.rebooted".to_owned()],
        };
        server.client().webhook_create(&project.to_string(), &wanted, None).await.unwrap().webhook.id
    }

    fn scope(&self, about: About) -> Scope {
        match about {
            About::Platform => Scope::Platform,
            About::Organization => Scope::Organization(self.organization),
            About::Project | About::Allocation | About::Webhook | About::Delivery => {
                Scope::Project { organization: self.organization, project: self.project }
            }
        }
    }
}

/// A caller with a token.
struct Somebody {
    name: String,
    token: String,
    principal: Principal,
}

async fn platform(server: &TestServer, role: PlatformRole) -> Somebody {
    let wanted = ApiTokenCreate { name: "t".to_owned(), role, life_seconds: None };
    let made = server.client().api_token_create(&wanted, None).await.unwrap();
    let principal = Principal { platform: vec![role], ..Principal::nobody(PrincipalId::Token(made.api_token.id)) };
    Somebody { name: role.as_str().to_owned(), token: made.token, principal }
}

/// Creates a service account of the tenant's project with this role, or with none.
async fn account(server: &TestServer, tenant: &Tenant, role: Option<ProjectRole>) -> Somebody {
    let (client, project) = (server.client(), tenant.project.to_string());
    let name = role.map_or("nobody", ProjectRole::as_str);
    let wanted = ServiceAccountCreate { name: name.replace('_', "-"), description: String::new(), role };
    let id = client.service_account_create(&project, &wanted, None).await.unwrap().id;
    let wanted = ApiKeyCreate { name: "k".to_owned(), scopes: None, life_seconds: None };
    let secret = client.api_key_create(&project, &id.to_string(), &wanted, None).await.unwrap().secret;
    let memberships = role.map(|role| (Place::Project(tenant.project), role)).into_iter().collect();
    let principal = Principal { memberships, ..Principal::nobody(PrincipalId::ServiceAccount(id)) };
    Somebody { name: format!("{name} of the project"), token: secret, principal }
}

async fn catalog(server: &TestServer) {
    let sku = SkuCreate {
        name: "one".to_owned(),
        description: String::new(),
        kind: ProductKind::Slice,
        slots: Some(1),
        gpu_model: None,
        allow_unknown_gpu: false,
        min_vcpus: 0,
        min_memory_mib: 0,
        price_per_hour: gpuaas_contract::money::Money::of_millionths(1, gpuaas_contract::money::Currency::USD),
    };
    server.client().sku_create(&sku, None).await.unwrap();
    let image = ImageCreate {
        name: "ubuntu".to_owned(),
        description: String::new(),
        url: Some("https://images.example.com/ubuntu.img".to_owned()),
        path: None,
        sha256: Digest::of(b"image"),
        format: Default::default(),
        driver_strategy: Default::default(),
        default_username: None,
    };
    server.client().image_create(&image, None).await.unwrap();
}

/// Returns the path of an endpoint for this tenant. Resources below the tenant do not exist: allowed callers then get "unknown",
/// and nothing is destroyed.
fn path(endpoint: &Endpoint, tenant: &Tenant) -> String {
    let mut path = String::new();
    for segment in endpoint.path.split('/').skip(1) {
        let value = match segment {
            "{organization}" => tenant.organization.to_string(),
            "{project}" => tenant.project.to_string(),
            "{allocation}" => tenant.allocation.to_string(),
            "{webhook}" => tenant.webhook.to_string(),
            "{member}" => MembershipId::generate().to_string(),
            "{service_account}" => ServiceAccountId::generate().to_string(),
            "{key}" => ApiTokenId::generate().to_string(),
            "{ssh_key}" => SshKeyId::generate().to_string(),
            "{image}" => ImageId::generate().to_string(),
            "{user}" => UserId::generate().to_string(),
            "{sku}" => SkuId::generate().to_string(),
            "{delivery}" => DeliveryId::generate().to_string(),
            "{maintenance}" => MaintenanceId::generate().to_string(),
            "{node}" => NodeId::generate().to_string(),
            "{slot}" => SlotId::generate().to_string(),
            "{slice}" => AllocationId::generate().to_string(),
            "{enrollment}" => EnrollmentId::generate().to_string(),
            "{token}" if endpoint.path.contains("join-tokens") => JoinTokenId::generate().to_string(),
            "{token}" => ApiTokenId::generate().to_string(),
            "{task}" => TaskId::generate().to_string(),
            other => {
                assert!(!other.starts_with('{'), "{other} of {} is not known to this test", endpoint.path);
                other.to_owned()
            }
        };
        path.push('/');
        path.push_str(&value);
    }
    path
}

/// The response for a caller.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Unauthenticated,
    Denied,
    /// It was allowed, whatever the result.
    Passed(u16),
}

async fn ask(http: &reqwest::Client, server: &TestServer, endpoint: &Endpoint, path: &str, token: Option<&str>) -> Told {
    let method = reqwest::Method::from_bytes(endpoint.method.as_str().as_bytes()).unwrap();
    let mut request = http.request(method, format!("{}{path}", server.url()));
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    if matches!(endpoint.method, Method::Post | Method::Put | Method::Patch) {
        request = request.header("content-type", "application/json").body("{}");
    }
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    let is_problem = answer.headers().get("content-type").is_some_and(|kind| kind.as_bytes().starts_with(b"application/problem"));
    if !is_problem {
        assert!(status < 500, "{} {path} answers {status}", endpoint.method.as_str());
        return Told::Passed(status);
    }
    let problem: serde_json::Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
    let (code, detail) = (problem["code"].as_str().unwrap_or_default(), problem["detail"].as_str().unwrap_or_default());
    assert!(status < 500, "{} {path} answers {status} {code}: {detail}", endpoint.method.as_str());
    match (status, code) {
        (401, _) => Told::Unauthenticated,
        (403, "forbidden") => Told::Denied,
        (403, "route_closed") => panic!("{} {} is not in the table", endpoint.method.as_str(), endpoint.path),
        (404, "route_unknown") => panic!("{} {} has no handler", endpoint.method.as_str(), endpoint.path),
        (404, _) if detail.ends_with("that you can see") => Told::Denied,
        (status, _) => Told::Passed(status),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_endpoint_asks_the_policies_the_right_question() {
    let server = TestServer::sqlite().await;
    catalog(&server).await;
    let (mut own, mut other) = (Tenant::new(&server, "own").await, Tenant::new(&server, "other").await);
    let mut callers = Vec::new();
    for role in PlatformRole::ALL {
        callers.push(platform(&server, role).await);
    }
    for role in ProjectRole::ALL {
        callers.push(account(&server, &own, Some(role)).await);
    }
    callers.push(account(&server, &own, None).await);
    let policies = Policies::embedded().unwrap();
    let http = common::plain_http();
    let mut wrong = Vec::new();
    let mut asked = 0;
    for endpoint in ENDPOINTS {
        let (action, name) = (endpoint.action, endpoint.method.as_str());
        // A delivery that does not exist has no owner that could be revealed.
        if endpoint.about == About::Delivery {
            continue;
        }
        for caller in &callers {
            for (whose, tenant) in [("own", &mut own), ("another", &mut other)] {
                if endpoint.method == Method::Delete && endpoint.about == About::Webhook {
                    tenant.webhook = Tenant::webhook(&server, tenant.project).await;
                }
                let expected = policies.may(&caller.principal, action, &tenant.scope(endpoint.about)) == Verdict::Allowed;
                let told = ask(&http, &server, endpoint, &path(endpoint, tenant), Some(&caller.token)).await;
                asked += 1;
                if matches!(told, Told::Passed(_)) != expected {
                    wrong.push(format!(
                        "{name} {} ({}) in {whose} project by {}: {told:?}, allowed by the policies: {expected}",
                        endpoint.path, endpoint.action, caller.name
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(asked > 1000, "only {asked} questions were asked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_but_the_open_routes_answers_a_stranger() {
    let server = TestServer::sqlite().await;
    catalog(&server).await;
    let tenant = Tenant::new(&server, "own").await;
    let http = common::plain_http();
    for endpoint in ENDPOINTS {
        for token in [None, Some("gpt_wrong"), Some("a.b.c"), Some("")] {
            let told = ask(&http, &server, endpoint, &path(endpoint, &tenant), token).await;
            assert_eq!(told, Told::Unauthenticated, "{} {} with {token:?}", endpoint.method.as_str(), endpoint.path);
        }
    }
    for open in OPEN {
        let answer = http.get(format!("{}{open}", server.url())).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{open}");
    }
}
