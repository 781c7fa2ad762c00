//! Error messages for invalid configurations, and clients from valid ones.

use super::*;

const GOOD: &str = r#"
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"#;

async fn with(text: &str) -> Result<Client, ConnectError> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    connect(&Access { kubeconfig: Some(file.path().to_owned()), ..Access::default() }).await
}

async fn connect_error(text: &str) -> String {
    with(text).await.unwrap_err().to_string()
}

#[tokio::test]
async fn a_client_of_a_valid_kubeconfig_has_its_user_and_server() {
    let client = with(GOOD).await.unwrap();
    assert_eq!(client.server(), "https://127.0.0.1:1");
    assert!(client.origin.credential.contains("user \"u\""), "{}", client.origin.credential);
}

#[tokio::test]
async fn the_error_for_a_missing_file_has_its_path() {
    let access = Access { kubeconfig: Some("/nonexistent/kc".into()), ..Access::default() };
    let error = connect(&access).await.unwrap_err().to_string();
    assert!(error.starts_with("kubeconfig /nonexistent/kc: No such file"), "{error}");
}

#[tokio::test]
async fn each_invalid_configuration_has_a_specific_message() {
    let no_context = GOOD.replace("current-context: x", "");
    assert!(connect_error(&no_context).await.contains("kubectl config use-context"));
    let other_context = GOOD.replace("current-context: x", "current-context: y");
    assert!(connect_error(&other_context).await.contains("current-context: \"y\" is not in contexts"));
    let proxy = GOOD.replace("cluster: {", "cluster: {proxy-url: \"socks4://p:1\", ");
    assert!(connect_error(&proxy).await.contains("proxy-url: a proxy with scheme socks4 is not supported"));
    let bad_ca = GOOD.replace("cluster: {", "cluster: {certificate-authority-data: \"!\", ");
    assert!(connect_error(&bad_ca).await.contains("not base64"));
    let bad_client = GOOD.replace("token: t", "client-certificate-data: YQ==, client-key-data: YQ==");
    assert!(
        connect_error(&bad_client).await.contains("client-certificate"),
        "{}",
        connect_error(&bad_client).await
    );
    let no_token = GOOD.replace("token: t", "tokenFile: /nonexistent/token");
    assert!(connect_error(&no_token).await.starts_with("token file /nonexistent/token: No such file"));
    assert!(connect_error("current-context: [").await.contains("kubeconfig"));
    for (user, expected) in [
        ("token: t, username: u", "user \"u\": token and username are both given"),
        ("client-key-data: \"!\"", "user \"u\": client-key-data: not base64"),
        ("client-key: k", "client-key without client-certificate"),
        ("as-groups: [g]", "as-uid, as-groups and as-user-extra need as"),
        ("auth-provider: {name: gcp}", "auth-provider \"gcp\" is no longer supported"),
        ("exec: {command: x, apiVersion: v0}", "exec.apiVersion: \"v0\" is none of"),
    ] {
        let message = connect_error(&GOOD.replace("token: t", user)).await;
        assert!(message.contains(expected), "{message}");
    }
    for (cluster, expected) in [
        ("insecure-skip-tls-verify: true, certificate-authority: x", "are both given"),
        ("certificate-authority: /nonexistent/ca", "certificate-authority /nonexistent/ca: No such file"),
        ("tls-server-name: \"a b\"", "tls-server-name"),
    ] {
        let message = connect_error(&GOOD.replace("cluster: {", &format!("cluster: {{{cluster}, "))).await;
        assert!(message.contains(expected), "{message}");
    }
}

#[tokio::test]
async fn error_messages_contain_no_secrets() {
    let broken = "users:\n- name: u\n  user:\n    token: SECRET\n    exec: [\n    client-key-data: KEY\n";
    let message = connect_error(broken).await;
    assert!(!message.contains("SECRET") && !message.contains("KEY"), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.contains("line"), "{message}");
}

#[tokio::test]
async fn invalid_entries_that_are_not_selected_are_ignored() {
    let with_invalid_entries = GOOD
        .replace("clusters: [", "clusters: [{name: null, cluster: null}, {name: d, cluster: {proxy-url: \"http://p:1\", certificate-authority-data: \"!\"}}, ")
        .replace("contexts: [", "contexts: [7, {name: [], context: 5}, ")
        .replace("clusters: [", "clusters: [null, [1], {name: e, cluster: {insecure-skip-tls-verify: perhaps, extensions: 3}}, ")
        .replace("users: [", "users: [{name: w, user: {exec: {args: 5}, as-groups: x, token: {}}}, {name: v, user: {client-key-data: \"!\", tokenFile: /nonexistent}}, ");
    with(&with_invalid_entries).await.unwrap();
}

#[tokio::test]
async fn the_error_for_a_field_of_the_wrong_type_names_the_entry_but_not_the_value() {
    for (user, part) in [("token: [SECRET]", "user \"u\""), ("password: {a: SECRET}", "user \"u\"")] {
        let message = connect_error(&GOOD.replace("token: t", user)).await;
        assert!(message.contains(part) && message.contains("wrong type"), "{message}");
        assert!(!message.contains("SECRET"), "{message}");
    }
}

#[tokio::test]
async fn impersonation_header_names_are_escaped() {
    assert_eq!(escaped("example.com/scope%"), "example.com%2Fscope%25");
    let user = "as: other, as-groups: [g], as-user-extra: {example.com/scope: [a, b]}";
    with(&GOOD.replace("token: t", user)).await.unwrap();
}

#[tokio::test]
async fn master_overrides_the_kubeconfig_and_must_be_a_url() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), GOOD).unwrap();
    let with = |master: &str| Access {
        kubeconfig: Some(file.path().to_owned()),
        master: Some(master.into()),
        ..Access::default()
    };
    let client = connect(&with("https://10.0.0.1:6443")).await.unwrap();
    assert_eq!((client.server(), client.origin.address_from.as_str()), ("https://10.0.0.1:6443", "--master"));
    assert_eq!(connect(&with("10.0.0.1:8080")).await.unwrap().server(), "http://10.0.0.1:8080");
    let error = connect(&with("ftp://x")).await.unwrap_err().to_string();
    assert!(error.contains("--master"), "{error}");
    let alone = Access { master: Some("http://10.0.0.1:8080".into()), ..Access::default() };
    assert_eq!(connect(&alone).await.unwrap().server(), "http://10.0.0.1:8080");
}

#[tokio::test]
async fn outside_a_pod_an_api_server_must_be_configured() {
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        return;
    }
    let error = connect(&Access::default()).await.unwrap_err().to_string();
    assert!(error.contains("--kubeconfig"), "{error}");
}
