//! Signing in with the built-in issuer, end to end: a scripted browser, a scripted client, a real server.

#![allow(clippy::unwrap_used, reason = "tests")]

mod browser;
mod common;

use browser::*;
use common::TestServer;
use common::looking::refused;
use gpuaas_api::dto::{
    ApiKeyCreate, AuditQuery, ImageCreate, MemberAdd, OrganizationCreate, OrganizationListQuery, OwnPassword, ProjectCreate,
    Reason, ServiceAccountCreate, UserCreate, UserListQuery, UserPassword,
};
use gpuaas_api::{Client, ClientOptions};
use gpuaas_contract::access::{MemberRole, PlatformRole, ProjectRole};
use gpuaas_identity::pkce::CodeVerifier;
use gpuaas_testkit::eventually_async;
use reqwest::StatusCode;
use serde_json::Value;

common::on_both_stores! {
    async fn somebody_signs_in_with_a_browser_and_sees_nothing_but_themselves_until_invited(server: TestServer) {
        let made = ada(&server).await;
        assert!(made.local && made.state.as_str() == "active" && made.issuer == server.url());
        let tokens = tokens(&server).await;
        assert_eq!((text(&tokens, "token_type").as_str(), tokens["expires_in"].as_u64()), ("Bearer", Some(600)));
        assert!(tokens["id_token"].is_string());
        let client = as_bearer(&server, &tokens);
        let who = client.whoami().await.unwrap();
        assert_eq!((who.kind.as_str(), who.id, who.email.as_deref()), ("user", format!("user:{}", made.id), Some(EMAIL)));
        assert!(!who.invited && who.memberships.is_empty());
        assert_eq!(refused(client.organizations(&OrganizationListQuery::default()).await), "forbidden");
        assert_eq!(refused(client.nodes(&Default::default()).await), "forbidden");
        let info = common::plain_http().get(format!("{}/oauth/userinfo", server.url())).bearer_auth(text(&tokens, "access_token"));
        let info: Value = info.send().await.unwrap().json().await.unwrap();
        assert_eq!((text(&info, "sub").as_str(), info["email_verified"].as_bool()), (EMAIL, Some(true)));
        // An ID token is for the client, not for the API.
        let wrong = server.client_with(Some(&text(&tokens, "id_token")));
        assert_eq!(refused(wrong.whoami().await), "token_audience");

        let wanted = OrganizationCreate { name: "lab".to_owned(), ..Default::default() };
        let organization = server.client().organization_create(&wanted, None).await.unwrap();
        let invite = MemberAdd { email: Some(EMAIL.to_owned()), service_account_id: None, role: MemberRole::Project(ProjectRole::Viewer) };
        server.client().organization_member_add(&organization.id.to_string(), &invite, None).await.unwrap();
        assert!(client.whoami().await.unwrap().invited, "the role counts from the next request on");
        assert_eq!(client.organizations(&OrganizationListQuery::default()).await.unwrap().items.len(), 1);
    }

    async fn a_code_is_for_the_client_that_asked_and_a_second_use_ends_the_sign_in(server: TestServer) {
        ada(&server).await;
        let verifier = CodeVerifier::generate();
        let code = Browser::new(&server).code(&verifier).await;
        assert_eq!(redeem(&server, &code, &CodeVerifier::generate()).await.unwrap_err(), "invalid_grant");
        let tokens = redeem(&server, &code, &verifier).await.unwrap();
        assert_eq!(redeem(&server, &code, &verifier).await.unwrap_err(), "invalid_grant");
        assert_eq!(refresh(&server, &text(&tokens, "refresh_token")).await.unwrap_err(), "invalid_grant");
        let audit = server.client().audit(&AuditQuery::default()).await.unwrap().items;
        let revoked = audit.iter().find(|row| row.action == "sign_in.revoke").expect("an audit row");
        assert!(revoked.body.contains("code_used_twice"), "{}", revoked.body);
        let written = serde_json::to_string(&audit).unwrap();
        for secret in [code.as_str(), PASSWORD, &text(&tokens, "refresh_token"), "argon2"] {
            assert!(!written.contains(secret), "a secret is in the audit log");
        }
    }

    async fn two_who_redeem_one_code_at_once_get_one_sign_in_at_most(server: TestServer) {
        ada(&server).await;
        let verifier = CodeVerifier::generate();
        let code = Browser::new(&server).code(&verifier).await;
        let attempts = futures::future::join_all((0..8).map(|_| redeem(&server, &code, &verifier))).await;
        let given: Vec<&Value> = attempts.iter().filter_map(|attempt| attempt.as_ref().ok()).collect();
        assert_eq!(given.len(), 1);
        assert_eq!(refresh(&server, &text(given[0], "refresh_token")).await.unwrap_err(), "invalid_grant");
    }

    async fn a_refresh_token_is_used_once_and_the_second_use_ends_all_of_them(server: TestServer) {
        ada(&server).await;
        let first = tokens(&server).await;
        let second = refresh(&server, &text(&first, "refresh_token")).await.unwrap();
        assert!(as_bearer(&server, &second).whoami().await.is_ok());
        let third = refresh(&server, &text(&second, "refresh_token")).await.unwrap();
        assert_eq!(refresh(&server, &text(&first, "refresh_token")).await.unwrap_err(), "invalid_grant");
        assert_eq!(refresh(&server, &text(&third, "refresh_token")).await.unwrap_err(), "invalid_grant");
        // Another sign-in of the same user is not affected.
        let other = tokens(&server).await;
        assert!(refresh(&server, &text(&other, "refresh_token")).await.is_ok());
    }

    async fn signing_out_ends_the_sign_in_and_says_the_same_about_what_is_unknown(server: TestServer) {
        ada(&server).await;
        for kind in ["refresh_token", "access_token"] {
            let tokens = tokens(&server).await;
            call(&server, "/oauth/revoke", &[("token", &text(&tokens, kind))]).await.unwrap();
            assert_eq!(refresh(&server, &text(&tokens, "refresh_token")).await.unwrap_err(), "invalid_grant", "{kind}");
        }
        call(&server, "/oauth/revoke", &[("token", "gpr_unknown")]).await.unwrap();
        assert_eq!(call(&server, "/oauth/revoke", &[]).await.unwrap_err(), "invalid_request");
    }

    async fn a_device_is_connected_by_whoever_has_signed_in_in_that_browser(server: TestServer) {
        ada(&server).await;
        let (device_code, user_code) = start_device(&server).await;
        assert_eq!(poll(&server, &device_code).await.unwrap_err(), "authorization_pending");
        assert_eq!(poll(&server, &device_code).await.unwrap_err(), "slow_down");
        let mut browser = Browser::new(&server);
        let question = asked(&mut browser, &user_code).await;
        // Another browser also knows the code, but there is no sign-in in it.
        let mut other = Browser::new(&server);
        let entry = other.get("/device").await;
        let fields = [("user_code", user_code.as_str()), ("csrf", &entry.hidden()["csrf"]), ("decision", "approve")];
        let refused = other.post("/device", &fields).await;
        assert!(refused.status == StatusCode::FORBIDDEN && refused.html.contains("Sign in first"));
        let not_yet = poll(&server, &device_code).await.unwrap_err();
        assert!(["slow_down", "authorization_pending"].contains(&not_yet.as_str()), "{not_yet}");

        let done = decides(&mut browser, &question, "approve").await;
        assert!(done.status == StatusCode::OK && done.html.contains("Signed in"));
        let tokens = poll(&server, &device_code).await.unwrap();
        assert_eq!(as_bearer(&server, &tokens).whoami().await.unwrap().email.as_deref(), Some(EMAIL));
        // The code is used for both sides, and a second use of the device code ends the sign-in.
        assert_eq!(decides(&mut browser, &question, "approve").await.status, StatusCode::FORBIDDEN);
        assert_eq!(poll(&server, &device_code).await.unwrap_err(), "invalid_grant");
        assert_eq!(refresh(&server, &text(&tokens, "refresh_token")).await.unwrap_err(), "invalid_grant");
    }

    async fn a_device_that_is_denied_or_unknown_gets_nothing(server: TestServer) {
        ada(&server).await;
        let (device_code, user_code) = start_device(&server).await;
        let mut browser = Browser::new(&server);
        let question = asked(&mut browser, &user_code).await;
        assert!(decides(&mut browser, &question, "deny").await.html.contains("Denied"));
        assert_eq!(poll(&server, &device_code).await.unwrap_err(), "access_denied");
        let unknown = format!("gpd_{}", "A".repeat(43));
        assert_eq!(poll(&server, &unknown).await.unwrap_err(), "invalid_grant");
        let csrf = browser.get("/device").await.hidden()["csrf"].clone();
        for code in ["BCDF-GHJK", "nonsense", ""] {
            let page = browser.post("/device", &[("user_code", code), ("csrf", &csrf)]).await;
            assert!(page.status == StatusCode::FORBIDDEN && page.html.contains("role=\"alert\""), "{code}");
        }
    }

    async fn wrong_passwords_have_to_wait_and_unknown_people_get_the_same_answer(server: TestServer) {
        ada(&server).await;
        let mut browser = Browser::new(&server);
        let verifier = CodeVerifier::generate();
        let page = browser.open(&verifier).await;
        let unknown = browser.types(&page, "/oauth/authorize", "nobody@example.org", PASSWORD).await;
        let wrong = browser.types(&page, "/oauth/authorize", EMAIL, "wrong wrong wrong").await;
        let shape = |answer: &Answer, email: &str| answer.html.replace(email, "EMAIL");
        assert_eq!(shape(&unknown, "nobody@example.org"), shape(&wrong, EMAIL));
        assert_eq!((unknown.status, wrong.status), (StatusCode::FORBIDDEN, StatusCode::FORBIDDEN));
        // The fifth wrong one was the last; from there on nothing is computed, and the answer is the same for both.
        for email in [EMAIL, "nobody@example.org"] {
            for _ in 1..5 {
                assert_eq!(browser.types(&page, "/oauth/authorize", email, "wrong wrong wrong").await.status, StatusCode::FORBIDDEN);
            }
            let waits = browser.types(&page, "/oauth/authorize", email, PASSWORD).await;
            assert_eq!((waits.status, waits.html.contains("sign_in_throttled")), (StatusCode::TOO_MANY_REQUESTS, true), "{email}");
            assert!(waits.retry_after.is_some_and(|seconds| (1..=180).contains(&seconds)), "{:?}", waits.retry_after);
        }
        let failed = eventually_async(common::PATIENCE, "the tries are written down", || async {
            let audit = server.client().audit(&AuditQuery::default()).await.unwrap().items;
            let failed = audit.iter().filter(|row| row.action == "user.sign_in_failed").count();
            (failed >= 5).then_some(failed)
        })
        .await;
        assert_eq!(failed, 5, "those of the account that exists");
    }

    async fn forms_count_only_from_our_own_pages(server: TestServer) {
        ada(&server).await;
        let verifier = CodeVerifier::generate();
        let page = Browser::new(&server).open(&verifier).await;
        // Without the cookie, with another browser's cookie, and without the field.
        let mut stranger = Browser::new(&server);
        assert_eq!(stranger.types(&page, "/oauth/authorize", EMAIL, PASSWORD).await.status, StatusCode::FORBIDDEN);
        let own = stranger.open(&verifier).await;
        assert_eq!(stranger.types(&page, "/oauth/authorize", EMAIL, PASSWORD).await.status, StatusCode::FORBIDDEN);
        let mut bare = own.hidden();
        bare.remove("csrf");
        let mut fields: Vec<(&str, &str)> = bare.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        fields.extend([("email", EMAIL), ("password", PASSWORD)]);
        let refused = stranger.post("/oauth/authorize", &fields).await;
        assert!(refused.status == StatusCode::FORBIDDEN && refused.html.contains("form_forged"));
        for headers in [
            vec![("sec-fetch-site", "cross-site".to_owned())],
            vec![("sec-fetch-site", "same-site".to_owned())],
            vec![("origin", "https://evil.example".to_owned())],
            vec![("origin", "null".to_owned())],
        ] {
            stranger.headers = headers.clone();
            let refused = stranger.types(&own, "/oauth/authorize", EMAIL, PASSWORD).await;
            assert_eq!(refused.status, StatusCode::FORBIDDEN, "{headers:?}");
        }
        stranger.headers = vec![("origin", server.url())];
        assert_eq!(stranger.types(&own, "/oauth/authorize", EMAIL, PASSWORD).await.status, StatusCode::SEE_OTHER);
    }

    async fn answers_go_to_loopback_addresses_only_and_refusals_that_may_go_there_do(server: TestServer) {
        let mut browser = Browser::new(&server);
        let verifier = CodeVerifier::generate();
        for elsewhere in ["https://evil.example/callback", "http://localhost:1/callback", "http://127.0.0.1:1/other"] {
            let shown = browser.get(&authorize(&verifier, elsewhere)).await;
            assert_eq!((shown.status, shown.location), (StatusCode::BAD_REQUEST, None), "{elsewhere}");
        }
        let plain = authorize(&verifier, CALLBACK).replace("S256", "plain");
        let sent = browser.get(&plain).await;
        assert_eq!(sent.sent("error").as_deref(), Some("invalid_request"));
    }

    async fn who_is_deactivated_gets_no_token_and_whose_password_is_set_signs_in_again(server: TestServer) {
        let user = ada(&server).await;
        let id = user.id.to_string();
        let before = tokens(&server).await;
        let set = server.client().user_password_set(&id, &UserPassword { password: None }).await.unwrap();
        let made_up = set.one_time_password.expect("a password was made up");
        assert_eq!(refresh(&server, &text(&before, "refresh_token")).await.unwrap_err(), "invalid_grant");
        let short = UserPassword { password: Some("short".to_owned()) };
        assert_eq!(refused(server.client().user_password_set(&id, &short).await), "password_too_short");
        let mut browser = Browser::new(&server);
        let verifier = CodeVerifier::generate();
        let page = browser.open(&verifier).await;
        assert_eq!(browser.types(&page, "/oauth/authorize", EMAIL, PASSWORD).await.status, StatusCode::FORBIDDEN);
        let sent = browser.types(&page, "/oauth/authorize", EMAIL, &made_up).await;
        let unused = sent.sent("code").unwrap();
        let sent = browser.types(&page, "/oauth/authorize", EMAIL, &made_up).await;
        let tokens = redeem(&server, &sent.sent("code").unwrap(), &verifier).await.unwrap();

        assert_eq!(server.client().user_deactivate(&id, &Reason::default()).await.unwrap().state.as_str(), "deactivated");
        assert_eq!(redeem(&server, &unused, &verifier).await.unwrap_err(), "invalid_grant");
        assert_eq!(refresh(&server, &text(&tokens, "refresh_token")).await.unwrap_err(), "invalid_grant");
        assert_eq!(browser.types(&page, "/oauth/authorize", EMAIL, &made_up).await.status, StatusCode::FORBIDDEN);
        let client = as_bearer(&server, &tokens);
        eventually_async(common::PATIENCE, "the access token is refused", || async {
            client.whoami().await.err().filter(|error| error.problem().is_some_and(|problem| problem.code == "user_deactivated"))
        })
        .await;
        let query = UserListQuery { state: Some(gpuaas_contract::state::UserState::Deactivated), ..UserListQuery::default() };
        assert_eq!(server.client().users(&query).await.unwrap().items.len(), 1);

        // They may sign in again, but earlier sessions stay closed.
        assert_eq!(server.client().user_reactivate(&id, &Reason::default()).await.unwrap().state.as_str(), "active");
        assert_eq!(refresh(&server, &text(&tokens, "refresh_token")).await.unwrap_err(), "invalid_grant");
        let sent = browser.types(&page, "/oauth/authorize", EMAIL, &made_up).await;
        let tokens = redeem(&server, &sent.sent("code").unwrap(), &verifier).await.unwrap();
        assert!(as_bearer(&server, &tokens).whoami().await.is_ok());
    }

    async fn who_is_deleted_leaves_no_role_no_sign_in_and_no_key_behind(server: TestServer) {
        let admin = server.client();
        let user = ada(&server).await;
        let (id, tokens) = (user.id.to_string(), tokens(&server).await);
        let client = as_bearer(&server, &tokens);
        let organization = admin.organization_create(&OrganizationCreate { name: "lab".to_owned(), ..Default::default() }, None).await.unwrap();
        let organization = organization.id.to_string();
        let owner = |email: &str| MemberAdd { email: Some(email.to_owned()), service_account_id: None, role: MemberRole::Project(ProjectRole::Owner) };
        admin.organization_member_add(&organization, &owner(EMAIL), None).await.unwrap();
        let project = ProjectCreate { name: "vision".to_owned(), ..Default::default() };
        let project = client.project_create(&organization, &project, None).await.unwrap().id.to_string();
        let account = ServiceAccountCreate { name: "ci".to_owned(), role: Some(ProjectRole::Owner), ..Default::default() };
        let account = client.service_account_create(&project, &account, None).await.unwrap().id.to_string();
        let key = ApiKeyCreate { name: "k".to_owned(), scopes: None, life_seconds: None };
        let made = client.api_key_create(&project, &account, &key, None).await.unwrap();
        assert_eq!(made.key.created_by, Some(format!("user:{id}")));
        let with_key = server.client_with(Some(&made.secret));
        let child = with_key.api_key_create(&project, &account, &key, None).await.unwrap();
        let kept = admin.api_key_create(&project, &account, &key, None).await.unwrap();

        // Somebody else must take over first.
        assert_eq!(refused(admin.user_delete(&id).await), "last_owner");
        let bob = UserCreate { email: "bob@example.org".to_owned(), ..UserCreate::default() };
        let bob = admin.user_create(&bob, None).await.unwrap().user;
        admin.organization_member_add(&organization, &owner("bob@example.org"), None).await.unwrap();
        let gone = admin.user_delete(&id).await.unwrap();
        assert!(gone.state.as_str() == "deleted" && gone.deleted_at.is_some());
        assert_eq!(refused(admin.user_delete(&id).await), "user_unknown");
        assert_eq!(refused(admin.user_reactivate(&id, &Reason::default()).await), "user_unknown");

        assert_eq!(refused(client.whoami().await), "sign_in_ended");
        assert_eq!(refresh(&server, &text(&tokens, "refresh_token")).await.unwrap_err(), "invalid_grant");
        for secret in [&made.secret, &child.secret] {
            assert_eq!(refused(server.client_with(Some(secret)).whoami().await), "token_invalid");
        }
        server.client_with(Some(&kept.secret)).whoami().await.expect("somebody else made it");
        let members = admin.organization_members(&organization, &Default::default()).await.unwrap().items;
        assert_eq!(members.iter().map(|member| member.user_id).collect::<Vec<_>>(), [Some(bob.id)]);
        let users = admin.users(&UserListQuery::default()).await.unwrap().items;
        assert_eq!(users.iter().map(|user| user.id).collect::<Vec<_>>(), [bob.id]);
        assert_eq!(admin.user(&id).await.unwrap().state.as_str(), "deleted", "the audit log names the id");
        let audit = admin.audit(&AuditQuery::default()).await.unwrap().items;
        assert!(audit.iter().any(|row| row.action == "user.delete") && audit.iter().any(|row| row.action == "user.create"));

        // The address is free. Whoever has it now is somebody else.
        let other = ada(&server).await;
        assert_ne!(other.id, user.id);
        let tokens = browser::tokens(&server).await;
        let who = as_bearer(&server, &tokens).whoami().await.unwrap();
        assert!(!who.invited && who.memberships.is_empty(), "{who:?}");
    }

    async fn the_last_administrator_stays(server: TestServer) {
        let admin = server.client();
        let user = ada(&server).await.id.to_string();
        let role = |email: &str| MemberAdd { email: Some(email.to_owned()), service_account_id: None, role: MemberRole::Platform(PlatformRole::Admin) };
        let member = admin.platform_member_add(&role(EMAIL), None).await.unwrap().id.to_string();
        assert_eq!(refused(admin.user_delete(&user).await), "last_admin");
        assert_eq!(refused(admin.platform_member_remove(&member, None).await), "last_admin");
        // One who cannot sign in does not count.
        let bob = UserCreate { email: "bob@example.org".to_owned(), ..UserCreate::default() };
        let bob = admin.user_create(&bob, None).await.unwrap().user.id.to_string();
        admin.platform_member_add(&role("bob@example.org"), None).await.unwrap();
        admin.user_deactivate(&bob, &Reason::default()).await.unwrap();
        assert_eq!(refused(admin.user_delete(&user).await), "last_admin");
        admin.user_reactivate(&bob, &Reason::default()).await.unwrap();
        admin.user_delete(&user).await.unwrap();
        assert_eq!(refused(admin.user_delete(&bob).await), "last_admin");
    }

    async fn nothing_of_a_deleted_organization_is_left(server: TestServer) {
        let admin = server.client();
        let user = ada(&server).await;
        let client = as_bearer(&server, &tokens(&server).await);
        let organization = admin.organization_create(&OrganizationCreate { name: "lab".to_owned(), ..Default::default() }, None).await.unwrap();
        let organization = organization.id.to_string();
        let project = ProjectCreate { name: "vision".to_owned(), ..Default::default() };
        let project = admin.project_create(&organization, &project, None).await.unwrap().id.to_string();
        let invite = MemberAdd { email: Some(EMAIL.to_owned()), service_account_id: None, role: MemberRole::Project(ProjectRole::Owner) };
        admin.organization_member_add(&organization, &invite, None).await.unwrap();
        admin.project_member_add(&project, &invite, None).await.unwrap();
        let image = ImageCreate {
            name: "own".to_owned(),
            description: String::new(),
            url: Some("https://images.example.com/own.img".to_owned()),
            path: None,
            sha256: gpuaas_contract::Digest::of(b"image"),
            format: Default::default(),
            driver_strategy: Default::default(),
            default_username: None,
        };
        client.project_image_create(&project, &image, None).await.unwrap();
        assert_eq!(client.whoami().await.unwrap().memberships.len(), 2);

        admin.project_delete(&project, None).await.unwrap();
        assert_eq!(client.whoami().await.unwrap().memberships.len(), 1);
        client.organization_delete(&organization, None).await.unwrap();
        let who = client.whoami().await.unwrap();
        assert!(who.memberships.is_empty() && !who.invited, "{who:?}");
        let audit = admin.audit(&AuditQuery::default()).await.unwrap().items;
        let count = |action: &str| audit.iter().filter(|row| row.action == action).count();
        assert_eq!((count("member.remove"), count("image.delete")), (2, 1));
        // Nothing of it is in the way of the user's end.
        admin.user_delete(&user.id.to_string()).await.unwrap();
    }

    async fn everybody_changes_their_own_password_if_they_know_it(server: TestServer) {
        ada(&server).await;
        let before = tokens(&server).await;
        let client = as_bearer(&server, &before);
        let change = |current: &str, new: &str| OwnPassword { current_password: current.to_owned(), new_password: new.to_owned() };
        assert_eq!(refused(client.own_password_set(&change("not mine at all", "a new and long one")).await), "password_wrong");
        assert_eq!(refused(client.own_password_set(&change(PASSWORD, "short")).await), "password_too_short");
        let token = server.client().own_password_set(&change(PASSWORD, "a new and long one")).await;
        assert_eq!(refused(token), "password_needs_person", "a token has none");
        client.own_password_set(&change(PASSWORD, "a new and long one")).await.unwrap();
        assert_eq!(refresh(&server, &text(&before, "refresh_token")).await.unwrap_err(), "invalid_grant");
        let mut browser = Browser::new(&server);
        let page = browser.open(&CodeVerifier::generate()).await;
        assert_eq!(browser.types(&page, "/oauth/authorize", EMAIL, PASSWORD).await.status, StatusCode::FORBIDDEN);
        assert!(browser.types(&page, "/oauth/authorize", EMAIL, "a new and long one").await.sent("code").is_some());
    }

    async fn users_are_made_once_by_administrators(server: TestServer) {
        ada(&server).await;
        let again = UserCreate { email: EMAIL.to_uppercase(), name: String::new(), password: None };
        assert_eq!(refused(server.client().user_create(&again, None).await), "user_exists");
        let other = UserCreate { email: "eve@example.org".to_owned(), name: String::new(), password: None };
        let made = server.client().user_create(&other, Some("k")).await.unwrap();
        let lost = server.client().user_create(&other, Some("k")).await;
        assert_eq!(refused(lost), "idempotency_answer_lost", "a password is told once");
        assert!(made.one_time_password.is_some_and(|password| password.len() >= 16));
        let client = as_bearer(&server, &tokens(&server).await);
        let third = UserCreate { email: "mallory@example.org".to_owned(), ..UserCreate::default() };
        assert_eq!(refused(client.user_create(&third, None).await), "forbidden");
        let found = UserListQuery { email: Some(EMAIL.to_owned()), ..UserListQuery::default() };
        assert_eq!(server.client().users(&found).await.unwrap().items.len(), 1);
    }

    async fn whoever_sits_at_the_server_needs_no_token(server: TestServer) {
        use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
        let mut server = server;
        let path = server.server().admin_socket.clone().expect("a socket");
        let found = std::fs::symlink_metadata(&path).unwrap();
        assert!(found.file_type().is_socket() && found.permissions().mode() & 0o777 == 0o600);
        let options = ClientOptions { unix_socket: Some(path.clone()), ..ClientOptions::new("http://localhost") };
        let local = Client::new(options).unwrap();
        let who = local.whoami().await.unwrap();
        assert_eq!((who.kind.as_str(), who.platform_role.as_ref().map(|role| role.as_str())), ("local_admin", Some("admin")));
        // A given token takes precedence, and the same address over the network has no identity.
        let with_token = ClientOptions {
            unix_socket: Some(path.clone()),
            token: Some("gpt_wrong".to_owned()),
            ..ClientOptions::new("http://localhost")
        };
        assert_eq!(refused(Client::new(with_token).unwrap().whoami().await), "token_invalid");
        assert_eq!(refused(server.client_with(None).whoami().await), "token_required");
        // A stopped server leaves nothing behind; a killed one leaves a socket that is replaced.
        server.server.take().unwrap().stop().await;
        assert!(std::fs::symlink_metadata(&path).is_err());
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let config = TestServer::config(&server.dir, server.pg.as_ref());
        server.server = Some(gpuaas_control::start(config).await.unwrap());
        assert_eq!(local.whoami().await.unwrap().kind.as_str(), "local_admin");
    }

    async fn discovery_and_keys_are_what_clients_need(server: TestServer) {
        let get = async |path: &str| -> Value {
            common::plain_http().get(format!("{}{path}", server.url())).send().await.unwrap().json().await.unwrap()
        };
        let found = get("/.well-known/openid-configuration").await;
        assert_eq!(text(&found, "issuer"), server.url());
        for name in ["authorization_endpoint", "token_endpoint", "jwks_uri", "revocation_endpoint", "device_authorization_endpoint"] {
            assert!(text(&found, name).starts_with(&server.url()), "{name}");
        }
        let keys = get("/oauth/jwks.json").await;
        assert_eq!((keys["keys"][0]["kty"].as_str(), keys["keys"][0]["crv"].as_str()), (Some("EC"), Some("P-256")));
        assert!(keys["keys"][0].get("d").is_none());
    }
}
